variable "project_id" {
  description = "The Google Cloud project that everything is made in, and billed to."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's ID (6 to 30 small letters, digits and hyphens, such as my-project-123), not its name or number."
  }
}

variable "zone" {
  description = "The one zone that holds the cluster, its nodes and their disks. It must offer NVIDIA L4."
  type        = string
  default     = "us-central1-a"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "zone must be a zone such as us-central1-a; a region such as us-central1 has several."
  }
}

variable "name" {
  description = "Name of the cluster, and the beginning of every other name."
  type        = string
  default     = "explorer"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 20 small letters, digits and hyphens, beginning with a letter: a service account's name is made of it."
  }
}

variable "cpu_machine" {
  description = "Machine of the pool that runs the app and the scheduler."
  type        = string
  default     = "e2-standard-4"

  validation {
    condition     = can(regex("^(e2|n2|n2d|c3|n4)-(standard|highmem|highcpu)-[0-9]+$", var.cpu_machine))
    error_message = "cpu_machine must be a general machine type such as e2-standard-4."
  }
}

variable "gpu_machine" {
  description = "Machine of the GPU pool: a G2 with one L4, which a worker has to itself."
  type        = string
  default     = "g2-standard-8"

  validation {
    condition     = contains(["g2-standard-8", "g2-standard-12", "g2-standard-16", "g2-standard-32"], var.gpu_machine)
    error_message = "gpu_machine must be a G2 with one L4 and room for a worker's 6 cores and 16 GiB: g2-standard-8, -12, -16 or -32."
  }
}

variable "gpu_nodes_max" {
  description = "GPU nodes at most; the pool goes down to none by itself. Not more than the project's L4 quota in the region."
  type        = number
  default     = 2

  validation {
    condition     = var.gpu_nodes_max >= 1 && var.gpu_nodes_max <= 16 && floor(var.gpu_nodes_max) == var.gpu_nodes_max
    error_message = "gpu_nodes_max must be a whole number from 1 to 16."
  }
}

variable "gpu_spot" {
  description = "Take spot machines for the GPU pool: much cheaper, and they may go at any time; a job that was running is then reported as failed."
  type        = bool
  default     = false
}

variable "deletion_protection" {
  description = "Refuse to destroy the cluster. Off, so that the lab's last step works; turn it on for anything that must last."
  type        = bool
  default     = false
}

variable "public" {
  description = "Prepare a public address behind the identity-aware proxy. Off: the app is reached with kubectl port-forward only."
  type        = bool
  default     = false
}

variable "visitors" {
  description = "Who may pass the identity-aware proxy: user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS or domain:NAME."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for who in var.visitors : can(regex("^(user|group|serviceAccount):[^@ ]+@[^@ ]+$|^domain:[^@ ]+$", who))])
    error_message = "Each of visitors must be user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS or domain:NAME; allUsers is not taken."
  }
}
