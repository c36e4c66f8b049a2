terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = local.region
  zone    = var.zone

  default_labels = {
    app = var.name
  }
}

locals {
  region = join("-", slice(split("-", var.zone), 0, 2))
}

data "google_project" "this" {
  project_id = var.project_id
}
