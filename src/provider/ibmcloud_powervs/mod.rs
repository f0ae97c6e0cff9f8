//! IBM Power Virtual Servers.

mod settings;

use super::{cloud::Cloud, instance::verbatim};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "ibmcloud-powervs", keys: settings::KEYS, check: None },
    chart_alias: Some("ibmcloudpowervs"),
    caveat: None,
    name_limit: 47,
    parse_id: verbatim,
    settles_late: true,
    instance_type: None,
    volumes: &[],
    open: None,
};
