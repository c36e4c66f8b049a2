# Zonal: one zone has the L4s and the workers' disks, and the management fee of one zonal cluster is within the free tier.
resource "google_container_cluster" "this" {
  name                = var.name
  location            = var.zone
  deletion_protection = var.deletion_protection

  network           = google_compute_network.this.id
  subnetwork        = google_compute_subnetwork.nodes.id
  networking_mode   = "VPC_NATIVE"
  datapath_provider = "ADVANCED_DATAPATH" # enforces the manifests' NetworkPolicies

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = true
    master_ipv4_cidr_block  = "172.16.0.0/28"
  }

  # No address range may reach the control plane's IP; kubectl comes by its DNS name, where IAM decides. Works from a cloud shell too.
  master_authorized_networks_config {}

  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }

  release_channel {
    channel = "REGULAR"
  }

  binary_authorization {
    evaluation_mode = "PROJECT_SINGLETON_POLICY_ENFORCE"
  }

  enable_shielded_nodes       = true
  enable_intranode_visibility = true

  security_posture_config {
    mode = "BASIC"
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }

  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS", "DCGM"]

    managed_prometheus {
      enabled = true
    }
  }

  cost_management_config {
    enabled = true
  }

  resource_labels = {
    app = var.name
  }

  # Pools are resources of their own below; GKE wants one to begin with, gone a minute later.
  remove_default_node_pool = true
  initial_node_count       = 1

  node_config {
    service_account = google_service_account.nodes.email
    oauth_scopes    = local.node_scopes

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    ignore_changes = [node_config]
  }

  depends_on = [google_project_service.needed, google_project_iam_member.nodes]
}
