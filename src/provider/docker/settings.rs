//! The settings of Docker, where containers stand for VMs: for tests alone.

use crate::settings::Key;

pub(super) const KEYS: &[Key] = &[
    Key::text("DOCKER_HOST", "Address of the Docker daemon.").default("unix:///var/run/docker.sock"),
    Key::text("DOCKER_API_VERSION", "Version of Docker's API.").default("1.44"),
    Key::switch("DOCKER_TLS_VERIFY", "Whether the daemon's certificate is verified.").default("false"),
    Key::text("DOCKER_CERT_PATH", "Folder with the certificates for the daemon."),
    Key::text("DOCKER_PODVM_IMAGE", "Image of the containers that are used instead of VMs.")
        .default("quay.io/confidential-containers/podvm-docker-image"),
    Key::text("DOCKER_NETWORK_NAME", "Network of these containers.").default("bridge"),
];
