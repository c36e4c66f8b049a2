# Only with public = true. The address is for the Ingress of k8s/components/public, which lets nobody through but by the proxy.
resource "google_compute_global_address" "public" {
  count = var.public ? 1 : 0
  name  = "explorer"

  lifecycle {
    precondition {
      condition     = length(var.visitors) > 0
      error_message = "public needs visitors: name who may pass the identity-aware proxy, such as [\"user:somebody@example.com\"]."
    }
  }

  depends_on = [google_project_service.needed]
}

resource "google_iap_web_iam_member" "visitors" {
  for_each = var.public ? toset(var.visitors) : toset([])

  project = var.project_id
  role    = "roles/iap.httpsResourceAccessor"
  member  = each.key

  depends_on = [google_project_service.needed]
}
