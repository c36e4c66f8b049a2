resource "google_artifact_registry_repository" "images" {
  repository_id = var.name
  location      = local.region
  format        = "DOCKER"
  description   = "Attention Explorer's images"

  # An image of CUDA libraries is several GB and costs money as long as it lies there.
  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"

    most_recent_versions {
      keep_count = 3
    }
  }

  cleanup_policies {
    id     = "drop-old"
    action = "DELETE"

    condition {
      older_than = "2592000s"
    }
  }

  depends_on = [google_project_service.needed]
}
