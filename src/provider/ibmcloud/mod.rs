//! IBM Cloud: virtual servers for VPC.

mod settings;

use super::{
    cloud::{AdaptorVolume, Cloud, InstanceTypeKey, NAME_LIMIT, VolumeSource},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "ibmcloud", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: true,
    instance_type: Some(InstanceTypeKey { name: "IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME", overruled_by: None }),
    volumes: &[AdaptorVolume {
        name: "vault-token",
        path: "/var/run/secrets/tokens",
        source: VolumeSource::Token { audience: "iam", file: "vault-token" },
    }],
    open: None,
};
