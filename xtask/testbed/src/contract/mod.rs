//! The clouds of the contract's scenarios, each started separately.

mod alibaba;
mod aws;
mod azure;
mod byom;
mod docker;
mod gcp;
mod ibm;
mod ibmcloud;
mod libvirt;
mod powervs;
mod vsphere;

use anyhow::{Result, bail};
use peerpod_operator::provider::contract::{Behavior, Cannot, Kind, Peer, Tally, memory::Memory, run};
use peers::{Does, HttpRelay};

use crate::{Settings, Testbed, vm_name};

/// Their names. A new cloud adds a line here and in [`Played::start`].
pub const PROVIDERS: [&str; 11] = [
    "memory",
    "libvirt",
    "aws",
    "azure",
    "gcp",
    "ibmcloud",
    "ibmcloud-powervs",
    "alibabacloud",
    "byom",
    "docker",
    "vsphere",
];

/// A cloud that was started for one test.
pub struct Played {
    /// The tests' interface to it.
    pub peer: Box<dyn Peer>,
    /// The settings of an operator for it.
    pub settings: Settings,
}

impl Played {
    /// `settings` are those of the peer.
    fn new<P: Peer + 'static>(peer: P, settings: impl FnOnce(&P) -> Settings) -> Self {
        let settings = settings(&peer);
        Self { peer: Box::new(peer), settings }
    }

    /// Starts the cloud of this name. If it needs a cluster, it uses this one, or starts its own.
    pub async fn start(provider: &str, cluster: Option<&Testbed>) -> Result<Self> {
        Ok(match (provider, cluster) {
            ("memory", _) => Self::new(Memory::default(), |_| Settings::default()),
            ("aws", _) => Self::new(aws::Aws::start().await?, |it| it.settings.clone()),
            ("azure", _) => Self::new(azure::Azure::start().await?, |it| it.settings.clone()),
            ("libvirt", _) => Self::new(libvirt::Libvirt::start().await?, libvirt::Libvirt::settings),
            ("gcp", _) => Self::new(gcp::Gcp::start().await?, |it| it.settings.clone()),
            ("ibmcloud", _) => Self::new(ibmcloud::IbmCloud::start().await?, |it| it.settings.clone()),
            ("ibmcloud-powervs", _) => Self::new(powervs::PowerVs::start().await?, |it| it.settings.clone()),
            ("alibabacloud", _) => Self::new(alibaba::AlibabaCloud::start().await?, |it| it.settings.clone()),
            ("byom", None) => Self::new(byom::Byom::start().await?, |it| it.settings.clone()),
            ("byom", Some(cluster)) => {
                Self::new(byom::Byom::start_in(cluster).await?, |it| it.settings.clone())
            }
            ("docker", _) => Self::new(docker::Docker::start().await?, |it| it.settings.clone()),
            ("vsphere", _) => Self::new(vsphere::Vsphere::start().await?, |it| it.settings.clone()),
            _ => bail!("there is no contract test for {provider}; there is one for {}", PROVIDERS.join(", ")),
        })
    }
}

/// Starts the cloud of this name as [`Played::start`] does, and runs all scenarios on it. Reports the name and the outcome of each.
pub async fn keep(
    provider: &str,
    cluster: Option<&Testbed>,
    tell: impl FnMut(&'static str, &Result<(), Cannot>),
) -> Result<Tally> {
    Ok(run(&*Played::start(provider, cluster).await?.peer, tell).await)
}

/// The name of a VM of this kind. A VM that is no pod VM has a name of another form.
fn name_of(kind: Kind, pod: &str) -> String {
    let name = vm_name(pod);
    if kind == Kind::Foreign { format!("database-{name}") } else { name }
}

/// Disturbs the requests below `api`: they hang, or get this answer about too many requests.
fn hinder(relay: &HttpRelay, behavior: Behavior, api: &'static str, too_many: &str) {
    relay.rule(move |seen| seen.path.starts_with(api), hindrance(behavior, too_many));
}

fn hindrance(behavior: Behavior, too_many: &str) -> Does {
    if behavior == Behavior::Hangs {
        return Does::Hang;
    }
    Does::Answer { status: 429, headers: vec![("retry-after", "1".to_owned())], body: too_many.to_owned() }
}

fn failed(error: anyhow::Error) -> Cannot {
    Cannot::Failed(error.into())
}
