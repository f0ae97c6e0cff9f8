//! Machines that exist already ("bring your own machine"): a `ConfigMap` says which Pod has which machine.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  read the pool: the machine is the Pod's
//! delete    read the pool: it still is; have the machine restart, by SFTP; write the pool without the allocation
//! describe  read the pool: the machine is available
//! describe  after 30 s, read the pool: it still is
//! ```
//!
//! cloud-api-adaptor may write the pool as it read it before, and so undo the return of a machine, whichever process returned it. So
//! a machine is absent only when it was available, or another Pod's, for a while. If the pool gives it to the Pod again, the deletion is repeated, unless
//! a PeerPod says that another Pod got the machine meanwhile.
//!
//! An identifier is an address, which the pool gives to other Pods later. So the pool alone says whether a machine is still the
//! one that a PeerPod recorded, and every write names the pool's version that it is made for.

mod examine;
mod machine;
mod pool;
mod returns;
mod settings;
mod store;

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use kube::Api;
use operator_kit::{Message, Permission};
use tokio::sync::Mutex;
use tracing::warn;

pub use self::settings::Settings;
use self::{
    machine::Access,
    pool::{Allocation, Pool},
    returns::Returns,
    settings::is_name,
    store::Store,
};
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, Listed, OwnVm, Pages, ParsedId,
    Provider, Resource, Vm,
    account::ExpectedIdentity,
    cloud::{AdaptorSecret, AdaptorVolume, Cloud, ClusterAccess, NAME_LIMIT, Opening, SSH_KEY, VolumeSource},
    ownership,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    settles_late: false,
    reuses_ids: true,
    volumes: &[
        SSH_KEY,
        // The manifests of cloud-api-adaptor had the host keys here before its chart had any.
        AdaptorVolume {
            name: "ssh-host-key-allowlist",
            path: "/etc/ssh-allowlist",
            source: VolumeSource::Secret(AdaptorSecret::Named("ssh-host-key-allowlist")),
        },
        AdaptorVolume {
            name: "byom-host-keys",
            path: "/etc/byom/ssh-host-keys",
            source: VolumeSource::Secret(AdaptorSecret::HostKeys),
        },
    ],
    permissions: &[Permission::new("", &["configmaps"], &["get", "update"]).named(&["byom-ip-pool-state"])],
    // cloud-api-adaptor makes the pool.
    adaptor_permissions: &[Permission::new("", &["configmaps"], &["create"])],
    ..Cloud::new("byom", Settings::KEYS, settings::check, address_of_machine, open)
};

/// The number of attempts to write while others write the pool, too.
const ATTEMPTS: usize = 5;

/// One pool.
struct Byom {
    store: Store,
    access: Access,
    returns: Arc<Returns>,
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let settings = Settings::read(values);
    let Some(ClusterAccess { client, namespace }) = &opening.cluster else {
        let message = "the pool of machines is in the cluster, to which there is no access";
        return Err(Error::new(ErrorClass::Transient, message));
    };
    let recorded = opening.recorded.as_ref();
    let place = recorded.map_or_else(|| settings.place(), |recorded| recorded.address.to_owned());
    let (namespace, name) = place.split_once('/').unwrap_or((namespace, &place));
    if !is_name(namespace) || !is_name(name) {
        return Err(Error::unreadable_place("ConfigMap"));
    }
    let store = Store {
        api: Api::namespaced(client.clone(), namespace),
        name: name.to_owned(),
        full_name: format!("{namespace}/{name}"),
        expected: ExpectedIdentity::of(opening),
        turn: Mutex::default(),
    };
    let patience = settings.patience();
    let (user, key) = (settings.user, settings.private_key.into());
    let access = Access { user, key, host_keys: settings.host_keys.map(Into::into), patience };
    // It outlives a change of the settings.
    let returns = opening.shared.get(&[CLOUD.name(), namespace, name], || Ok(Returns::default()))?;
    Ok(Box::new(Byom { store, access, returns }))
}

fn address_of_machine(raw: &str) -> Result<ParsedId, IdProblem> {
    let address = raw.parse::<IpAddr>().map(|address| ParsedId::unscoped(address.to_string()));
    address.map_err(|_| IdProblem::Malformed { expected: "the address of a machine", hint: None })
}

fn address(id: &InstanceId) -> Result<IpAddr, Error> {
    let invalid = |_| Error::new(ErrorClass::Invalid, Message::public(format!("{id} is not an address")));
    id.as_str().parse().map_err(invalid)
}

/// The name that a VM in the Pod's sandbox has on other clouds. An allocation of another form has no such name.
fn name(allocation: &Allocation) -> String {
    let sandbox = allocation.sandbox();
    sandbox.map_or_else(|| allocation.key.clone(), |it| ownership::name(&allocation.pod, it, NAME_LIMIT))
}

/// The allocation that was described.
fn described<'a>(pool: &'a Pool, vm: &Vm) -> Option<&'a Allocation> {
    let is_same = |it: &&Allocation| {
        vm.belongings.contains(&it.key)
            && vm.id.as_str() == it.address.to_string()
            && vm.created == Some(it.since)
    };
    pool.allocations.iter().find(is_same)
}

#[async_trait]
impl Provider for Byom {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        let address = address(id)?;
        let read = self.store.read().await?;
        let allocation = match read.pool.held(address, claim) {
            // Also if another Pod has it by now: cloud-api-adaptor may write the pool as it was before.
            Err(gone) if gone.class == ErrorClass::NotFound => {
                self.returns.absent(address, claim)?;
                return Err(gone);
            }
            held => held?,
        };
        Ok(Vm {
            created: Some(allocation.since),
            belongings: vec![allocation.key.clone()],
            reappeared: self.returns.undone(address, claim),
            ..Vm::named(id.clone(), name(allocation))
        })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let vm = vm.vm();
        let address = address(&vm.id)?;
        let mut read = self.store.read().await?;
        // cloud-api-adaptor may have given the machine to another Pod since.
        if described(&read.pool, vm).is_none() {
            return Ok(Accepted::default());
        }
        let restarted = match self.access.log_in(address, self.access.patience).await {
            Ok(session) => {
                // The login may have taken long enough for cloud-api-adaptor to give the machine to another Pod.
                read = self.store.read().await?;
                if described(&read.pool, vm).is_none() {
                    return Ok(Accepted::default());
                }
                self.access.reboot(session).await
            }
            Err(problem) => Err(problem),
        };
        if let Err(problem) = restarted {
            warn!(
                machine = vm.name,
                %address,
                problem,
                "the machine could not be told to restart; it returns to the pool as it is"
            );
        }
        let _turn = self.store.turn.lock().await;
        for _ in 0..ATTEMPTS {
            let Some(allocation) = described(&read.pool, vm) else { return Ok(Accepted::default()) };
            let state = read
                .pool
                .without(allocation, Timestamp::now())
                .map_err(|_| Error::new(ErrorClass::Transient, "the pool cannot be written as JSON"))?;
            if self.store.write(&read, state).await? {
                return Ok(Accepted::default());
            }
            read = self.store.read().await?;
        }
        let message = "other processes changed the pool each time the operator was about to write it";
        Err(Error::new(ErrorClass::Transient, message))
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        // The pool does not record whether a machine is on.
        let listed = |allocation: &Allocation| Listed {
            created: Some(allocation.since),
            ..Listed::new(Resource::Vm, allocation.address.to_string(), name(allocation))
        };
        let read = self.store.read().await?;
        pages(read.pool.allocations.iter().map(listed).collect());
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.store.uid().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}

#[cfg(test)]
mod tests;
