output "get_credentials" {
  description = "Gives kubectl its access to the cluster."
  value       = "gcloud container clusters get-credentials ${google_container_cluster.this.name} --location ${var.zone} --project ${var.project_id} --dns-endpoint"
}

output "registry" {
  description = "Where the images go."
  value       = "${local.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.images.repository_id}"
}

output "public_address" {
  description = "What the DNS name of the public app must point at; null unless public."
  value       = var.public ? google_compute_global_address.public[0].address : null
}
