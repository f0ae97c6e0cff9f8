//! How large the VM of a Pod must be.

use crate::api::v1alpha1::Sizing;
use operator_kit::quantity::Amount;

/// The annotations from which cloud-api-adaptor reads the VM's size: CPUs, memory in MiB, GPUs.
pub const ANNOTATIONS: [&str; 3] = [
    "io.katacontainers.config.hypervisor.default_vcpus",
    "io.katacontainers.config.hypervisor.default_memory",
    "io.katacontainers.config.hypervisor.default_gpus",
];

/// The extended resource for GPUs.
pub const GPU: &str = "nvidia.com/gpu";

/// Resources that the VM provides, so that the Pod's node need not.
pub(crate) const MOVED: [&str; 4] = ["cpu", "memory", GPU, "ephemeral-storage"];

/// The VM provides every resource whose name begins with this, too.
pub(crate) const MOVED_PREFIX: &str = "hugepages-";

/// Resources that the Pod as a whole can request and the VM provides, besides [`MOVED_PREFIX`].
pub(crate) const MOVED_OF_POD: [&str; 2] = ["cpu", "memory"];

/// The resources of a container that determine the VM's size, as fields of the container's `resources`. Extended resources are last.
pub(crate) const FIELDS: [(&str, &str); 5] =
    [("requests", "cpu"), ("limits", "cpu"), ("requests", "memory"), ("limits", "memory"), ("requests", GPU)];

/// The places of the [`FIELDS`].
pub(crate) const CPU: usize = 0;
pub(crate) const CPU_LIMIT: usize = 1;
pub(crate) const MEMORY: usize = 2;
pub(crate) const MEMORY_LIMIT: usize = 3;
pub(crate) const GPUS: usize = 4;

/// Whether this is an extended resource. Its request and its limit are equal, so one of them may be missing. A Pod as a whole cannot
/// request it.
pub(crate) fn is_extended(resource: &str) -> bool {
    resource.contains('/')
}

/// What a container, or the Pod as a whole, requests: an amount for each of cpu request, cpu limit, memory request, memory limit
/// and GPUs, in this order; `None` if it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand(pub [Option<Amount>; FIELDS.len()]);

impl Demand {
    /// The same with the requests that the API server adds if there is only a limit, of cpu or of memory.
    #[must_use]
    pub(super) fn with_default_requests(self) -> Self {
        let [cpu, cpu_limit, memory, memory_limit, gpus] = self.0;
        Self([cpu.or(cpu_limit), cpu_limit, memory.or(memory_limit), memory_limit, gpus])
    }

    /// What a Pod as a whole requests by itself, without requests that the API server derived from its containers. The API server
    /// derives them for every resource as soon as the Pod as a whole has any limit. They would hide what is injected later. Those
    /// below the containers' total were derived before a container got its request, as by a `LimitRange`: the API server refuses
    /// such a Pod if a user wrote them.
    #[must_use]
    pub(super) fn without_derived_requests(self, containers: &[(Role, Self)]) -> Self {
        let derived = |request: usize, limit: usize| {
            self.0[limit].is_none() && self.0[request].is_some_and(|own| own <= peak(containers, request))
        };
        let [cpu, cpu_limit, memory, memory_limit, gpus] = self.0;
        let cpu = cpu.filter(|_| !derived(CPU, CPU_LIMIT));
        let memory = memory.filter(|_| !derived(MEMORY, MEMORY_LIMIT));
        Self([cpu, cpu_limit, memory, memory_limit, gpus])
    }
}

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// With the other containers, after all init containers.
    Container,
    /// By itself, before those that follow.
    Init,
    /// From its place among the init containers to the Pod's end.
    Sidecar,
}

/// A VM's size; a part is `None` if it was not requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Whole CPUs.
    pub vcpus: Option<u64>,
    /// Memory in MiB.
    pub memory: Option<u64>,
    /// GPUs.
    pub gpus: Option<u64>,
}

/// By this annotation a user names the instance type. Then the size does not matter.
pub(super) const INSTANCE_TYPE: &str = "io.katacontainers.config.hypervisor.machine_type";

impl Size {
    /// Its parts, in the order of the [`ANNOTATIONS`].
    pub const fn parts(self) -> [Option<u64>; ANNOTATIONS.len()] {
        let Self { vcpus, memory, gpus } = self;
        [vcpus, memory, gpus]
    }
}

/// Whether each cloud with instance types ignores the size: it needs both CPUs and memory, or, on aws and alibabacloud, GPUs.
/// `are_there`: which of the [`ANNOTATIONS`] the Pod has.
pub(super) const fn is_ignored(are_there: [bool; ANNOTATIONS.len()]) -> bool {
    let [cpu, memory, gpus] = are_there;
    cpu != memory && !gpus
}

/// The size of the VM for these containers, init containers and sidecars in their order, and for the requests of the Pod as a
/// whole. Amounts are cut to the largest signed number of 64 bits.
///
/// Requests and limits are added up separately. The total of the limits counts if the total of the requests is not zero and not larger.
/// Otherwise the total of the requests counts.
///
/// By [`Sizing::Kubernetes`], the requests of the Pod as a whole replace the containers' total.
pub fn size(sizing: Sizing, containers: &[(Role, Demand)], pod: Demand) -> Size {
    // A limit of the Pod as a whole is its request, too, if no container has one.
    let asked = |field: usize| containers.iter().any(|(_, demand)| demand.0[field].is_some());
    let [cpu, cpu_limit, memory, memory_limit, _] = pod.0;
    let pod: [_; FIELDS.len()] = [
        cpu.or(cpu_limit.filter(|_| !asked(CPU))),
        cpu_limit,
        memory.or(memory_limit.filter(|_| !asked(MEMORY))),
        memory_limit,
        None,
    ];
    let total = |field: usize| match sizing {
        Sizing::Kubernetes => pod[field].unwrap_or_else(|| peak(containers, field)),
        Sizing::Sum => containers.iter().map(|(_, demand)| amount(*demand, field)).sum(),
    };
    let [cpu, cpu_limit, memory, memory_limit, gpus] =
        [CPU, CPU_LIMIT, MEMORY, MEMORY_LIMIT, GPUS].map(total);
    let units = |amount: Amount, unit| Some(amount.in_units_of(unit)).filter(|units| *units > 0);
    Size {
        vcpus: units(larger(cpu, cpu_limit), 1),
        memory: units(larger(memory, memory_limit), 1 << 20),
        gpus: units(gpus, 1),
    }
}

/// The most that is in use at once: by an init container with the sidecars before it, or by all containers and sidecars.
fn peak(containers: &[(Role, Demand)], field: usize) -> Amount {
    let (mut lasting, mut starting) = (Amount::default(), Amount::default());
    for (role, demand) in containers {
        let amount = amount(*demand, field);
        if *role == Role::Init {
            starting = starting.max(lasting + amount);
        } else {
            lasting = lasting + amount;
        }
    }
    starting.max(lasting)
}

fn amount(demand: Demand, field: usize) -> Amount {
    demand.0[field].unwrap_or_default()
}

fn larger(request: Amount, limit: Amount) -> Amount {
    if request.is_zero() { request } else { request.max(limit) }
}
