//! The settings of machines that are there already ("bring your own machine").

use crate::settings::Key;

pub(super) const KEYS: &[Key] = &[
    Key::text(
        "VM_POOL_IPS",
        "The machines' addresses, separated by commas; ranges are possible, as in 10.0.0.1-10.0.0.9.",
    )
    .required(),
    Key::text("MAX_RANGE_IPS", "Largest number of addresses in a range.").default("100"),
    Key::text("SSH_USERNAME", "User on the machines.").default("peerpod"),
    Key::text("SSH_PUB_KEY_PATH", "File with the public key.").default("/root/.ssh/id_rsa.pub"),
    Key::text("SSH_PRIV_KEY_PATH", "File with the private key.").default("/root/.ssh/id_rsa"),
    Key::text("SSH_TIMEOUT", "How long connecting to a machine may take, in seconds.").default("30"),
    Key::text(
        "SSH_HOST_KEY_ALLOWLIST_DIR",
        "Folder with the trusted host keys: /etc/byom/ssh-host-keys for the Secret byom-ssh-host-keys, or /etc/ssh-allowlist \
         for the Secret ssh-host-key-allowlist. If empty, every host key is trusted.",
    ),
    Key::text(
        "POOL_NAMESPACE",
        "Namespace of the ConfigMap that assigns machines to Pods. If empty, cloud-api-adaptor's own. In \
         another namespace cloud-api-adaptor needs rights that the installation does not grant.",
    ),
    Key::text(
        "POOL_CONFIGMAP_NAME",
        "Name of the ConfigMap that assigns machines to Pods. For another name cloud-api-adaptor needs \
         rights that the installation does not grant.",
    )
    .default("byom-ip-pool-state"),
];
