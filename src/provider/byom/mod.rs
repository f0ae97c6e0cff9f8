//! VMs that are there already ("bring your own machine").

mod settings;

use super::{
    cloud::{AdaptorSecret, AdaptorVolume, Cloud, NAME_LIMIT, SSH_KEY, VolumeSource},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "byom", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: false,
    instance_type: None,
    volumes: &[
        SSH_KEY,
        // Where the manifests of cloud-api-adaptor had the host keys before its chart had any.
        AdaptorVolume {
            name: "ssh-host-key-allowlist",
            path: "/etc/ssh-allowlist",
            source: VolumeSource::Secret(AdaptorSecret::Named("ssh-host-key-allowlist")),
        },
        AdaptorVolume {
            name: "byom-host-keys",
            path: "/etc/byom/ssh-host-keys",
            source: VolumeSource::Secret(AdaptorSecret::HostKeys),
        },
    ],
    open: None,
};
