//! Amazon EC2.

mod settings;

use super::{
    cloud::{Cloud, InstanceTypeKey, NAME_LIMIT},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "aws", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: true,
    instance_type: Some(InstanceTypeKey { name: "PODVM_INSTANCE_TYPE", overruled_by: None }),
    volumes: &[],
    open: None,
};
