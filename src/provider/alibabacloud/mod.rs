//! Alibaba Cloud ECS.

mod settings;

use super::{
    cloud::{AdaptorVolume, Cloud, InstanceTypeKey, NAME_LIMIT, VolumeSource},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "alibabacloud", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: true,
    instance_type: Some(InstanceTypeKey { name: "PODVM_INSTANCE_TYPE", overruled_by: Some("INSTANCE_TYPE") }),
    volumes: &[AdaptorVolume {
        name: "rrsa-oidc-token",
        path: "/var/run/secrets/ack.alibabacloud.com/rrsa-tokens",
        source: VolumeSource::Token { audience: "sts.aliyuncs.com", file: "token" },
    }],
    open: None,
};
