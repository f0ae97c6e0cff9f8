//! Docker, where containers stand for VMs: for tests alone.

mod settings;

use super::{
    cloud::{AdaptorVolume, Cloud, NAME_LIMIT, VolumeSource},
    instance::verbatim,
};
use crate::settings::Schema;

/// What differs from other clouds. This version does not delete VMs here.
pub static CLOUD: Cloud = Cloud {
    schema: Schema { cloud: "docker", keys: settings::KEYS, check: None },
    chart_alias: None,
    caveat: None,
    name_limit: NAME_LIMIT,
    parse_id: verbatim,
    settles_late: false,
    instance_type: None,
    volumes: &[
        // Where DOCKER_HOST is another host this one has no socket.
        AdaptorVolume { name: "docker-socket", path: "/var/run/docker.sock", source: VolumeSource::HostPath },
        AdaptorVolume { name: "docker-dir", path: "/var/lib/docker", source: VolumeSource::HostPath },
    ],
    open: None,
};
