//! Whether each PeerPodConfig is ready, and its capacity. These are the only series that objects add: one set for each configuration
//! that the controller honours, whose authors are administrators.

use std::{collections::BTreeMap, fmt, sync::Arc};

use operator_kit::metrics::Description;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

const READY: Description = Description {
    name: "peerpod_operator_peerpodconfig_ready",
    kind: "gauge",
    labels: &["config"],
    help: "Whether the condition Ready of a PeerPodConfig is True: 1 or 0. It is 0 while the PeerPodConfig is being deleted.",
};

const ADVERTISED: Description = Description {
    name: "peerpod_operator_capacity_advertised_vms",
    kind: "gauge",
    labels: &["config"],
    help: "VMs that the operator advertises on the nodes of a PeerPodConfig, as the scheduler reads them. Absent while the nodes are \
           not known.",
};

const USED: Description = Description {
    name: "peerpod_operator_capacity_used_vms",
    kind: "gauge",
    labels: &["config"],
    help: "VMs that Pods on the nodes of a PeerPodConfig request: Pods that are scheduled and have not ended, whether their VM is \
           there or not. Counted every 5 minutes, in large clusters less often. Absent before the first count, and without \
           spec.limit.",
};

const FREE: Description = Description {
    name: "peerpod_operator_capacity_free_vms",
    kind: "gauge",
    labels: &["config"],
    help: "VMs that the nodes of a PeerPodConfig advertise and no Pod requests, as of the last count. Absent where the used ones \
           are.",
};

/// Every metric, in the order in which they are scraped.
pub(super) const DESCRIPTIONS: [Description; 4] = [READY, ADVERTISED, USED, FREE];

/// Whether one configuration is ready, and how many VMs its nodes may run, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigCapacity {
    /// Whether all of it is ready.
    pub ready: bool,
    /// How many VMs they advertise together; `None`: the nodes are not known.
    pub advertised: Option<u64>,
    /// How many of them Pods request; `None`: not counted.
    pub usage: Option<Usage>,
}

/// What Pods take of the capacity of one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many VMs Pods request.
    pub used: u64,
    /// How many further VMs Pods can request.
    pub free: u64,
}

/// The capacities by the configurations' names, as they are scraped. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Capacities(Arc<Mutex<BTreeMap<String, ConfigCapacity>>>);

impl Capacities {
    /// Replaces all of them.
    pub(super) fn replace(&self, capacities: BTreeMap<String, ConfigCapacity>) {
        *self.0.lock() = capacities;
    }
}

impl Collector for Capacities {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let capacities = self.0.lock();
        let value_of: [fn(&ConfigCapacity) -> Option<u64>; 4] = [
            |it| Some(it.ready.into()),
            |it| it.advertised,
            |it| it.usage.map(|usage| usage.used),
            |it| it.usage.map(|usage| usage.free),
        ];
        for (Description { name, help, .. }, value_of) in DESCRIPTIONS.iter().zip(value_of) {
            let mut samples =
                capacities.iter().filter_map(|(config, it)| Some((config, value_of(it)?))).peekable();
            // A family without samples is not shown.
            if samples.peek().is_none() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (config, value) in samples {
                let label = [("config", config.as_str())];
                ConstGauge::new(value).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}
