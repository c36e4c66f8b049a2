# The project's services. Destroying leaves them on: something else may use them by then.
resource "google_project_service" "needed" {
  for_each = toset(concat(
    [
      "artifactregistry.googleapis.com",
      "binaryauthorization.googleapis.com",
      "cloudresourcemanager.googleapis.com",
      "compute.googleapis.com",
      "container.googleapis.com",
      "iam.googleapis.com",
      "logging.googleapis.com",
      "monitoring.googleapis.com",
    ],
    var.public ? ["iap.googleapis.com"] : [],
  ))

  service            = each.key
  disable_on_destroy = false
}
