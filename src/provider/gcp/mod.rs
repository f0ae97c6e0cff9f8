//! Google Compute Engine.

mod settings;

use super::{
    cloud::{Cloud, InstanceTypeKey, NAME_LIMIT},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "gcp", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: true,
    instance_type: Some(InstanceTypeKey { name: "GCP_MACHINE_TYPE", overruled_by: None }),
    volumes: &[],
    open: None,
};
