//! vSphere.

mod settings;

use super::{
    cloud::{Cloud, NAME_LIMIT},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "vsphere", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: false,
    instance_type: None,
    volumes: &[],
    open: None,
};
