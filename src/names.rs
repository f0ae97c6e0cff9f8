//! Names that several parts of the operator share: of objects, labels and images. Names alone, no logic.

/// The default namespace of the installation.
pub const NAMESPACE: &str = "confidential-containers-system";

/// The name of the operator, and of its own objects.
pub const OPERATOR: &str = "peerpod-operator";

/// The label with the name of the program that an object is part of.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";

/// The label that says which of its programs an object is for.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";

/// The value of [`COMPONENT_LABEL`] of the operator's own objects.
pub const OPERATOR_COMPONENT: &str = "operator";

/// The value of [`COMPONENT_LABEL`] of what is for cloud-api-adaptor.
pub const ADAPTOR_COMPONENT: &str = "adaptor";

/// The value of [`COMPONENT_LABEL`] of what is for the admission webhook.
pub const WEBHOOK_COMPONENT: &str = "webhook";

/// The default image of the installation.
pub const DEFAULT_IMAGE: &str = concat!("peerpod-operator:", env!("CARGO_PKG_VERSION"));

/// The `ConfigMap` with the provider's settings, cloud-api-adaptor's own.
pub const CONFIG_MAP: &str = "peer-pods-cm";

/// The `Secret` with the provider's credentials, cloud-api-adaptor's own.
pub const SECRET: &str = "peer-pods-secret";

/// The `Secret` with the key (`id_rsa`, `id_ecdsa` or `id_ed25519`) and, if wanted, the `known_hosts` for libvirt by ssh:
/// cloud-api-adaptor's own.
pub const SSH_KEY_SECRET: &str = "ssh-key-secret";

/// The `Secret` with certificates for the connection to pod VMs, cloud-api-adaptor's own.
pub const TLS_SECRET: &str = "certs-for-tls";

/// The `Secret` with the host keys that byom trusts, cloud-api-adaptor's own.
pub const BYOM_HOST_KEYS_SECRET: &str = "byom-ssh-host-keys";

/// The `ConfigMap` with the places in which VMs may be, the operator's own.
pub const PLACES: &str = "peerpod-operator-places";

/// The label that every namespace has, with its name.
pub const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// The namespace of Kubernetes' own programs. Its UID identifies a cluster.
pub const KUBE_SYSTEM: &str = "kube-system";

/// The default name of the operator's Lease.
pub const LEASE: &str = "peerpod-operator";

/// The Lease that cloud-api-adaptor's own `peerpod-ctrl` holds while it acts.
pub const PEERPOD_CTRL_LEASE: &str = "33f6c5d6.confidentialcontainers.org";
