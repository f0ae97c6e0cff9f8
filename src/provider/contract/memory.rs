//! A cloud in memory. It settles late, its identifiers may have a scope, and it deletes in its own time.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Behavior, Cannot, Example, Kind, Left, Peer};
use crate::{
    provider::{
        Accepted, Bears, Claim, Cloud, Error, ErrorClass, Finding, IdProblem, InstanceId, Listed, OwnVm,
        Pages, ParsedId, PowerState, Provider, Resource, Stage, Vm, VmRef,
    },
    settings::Endpoint,
};

/// What is known of it. Its name is none that cloud-api-adaptor knows.
pub static CLOUD: Cloud =
    Cloud::new("memory", &[], |_| Ok(endpoint()), parse_id, |_, _| Ok(Box::new(Memory::default())));

fn endpoint() -> Endpoint {
    Endpoint { setting: "MEMORY", address: HERE.to_owned() }
}

/// The scope of identifiers that have none.
const HERE: &str = "here";

/// How long to wait where it asks for fewer calls.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What its VMs are tagged with.
const TAG: [&str; 2] = ["cluster", "test"];

/// The number of things on a page of its list.
const PAGE: usize = 2;

/// The cloud. Clones are the same one.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By scope and the rest of the identifier.
    vms: HashMap<(String, String), Machine>,
    made: u32,
    behavior: Option<(Behavior, (String, String))>,
    /// For how long it wants no calls when it is next asked for a VM.
    pause: Option<Duration>,
}

struct Machine {
    name: String,
    /// Whether it runs, while it is there.
    power: Option<PowerState>,
    leaving: bool,
    belongings: HashSet<String>,
    user_data: bool,
}

impl Memory {
    /// A pod VM for the Pod of this name, made in an instant.
    pub fn vm(&self, pod: &str) -> Example {
        self.add(Kind::Running, pod)
    }

    /// From now on no call is answered.
    pub fn hang(&self) {
        self.0.lock().behavior = Some((Behavior::Hangs, (String::new(), String::new())));
    }

    /// When it is next asked for a VM, it wants no calls for this time.
    pub fn pause_once(&self, time: Duration) {
        self.0.lock().pause = Some(time);
    }

    /// How many VMs are there.
    pub fn count(&self) -> usize {
        self.0.lock().vms.values().filter(|vm| vm.power.is_some()).count()
    }

    fn add(&self, kind: Kind, pod: &str) -> Example {
        let mut state = self.0.lock();
        state.made += 1;
        let number = state.made;
        // An identifier of many a cloud.
        let own = format!("a0000000-0000-4000-8000-{number:012x}");
        let (scope, id) = match kind {
            Kind::InAnotherScope => ("there", format!("there/{own}")),
            _ => (HERE, own.clone()),
        };
        let name = match kind {
            Kind::Foreign => format!("database-{number}"),
            _ => format!("podvm-{pod}-{number:08x}"),
        };
        let vm = Machine {
            name: name.clone(),
            power: match kind {
                Kind::Remains => None,
                Kind::Stopped => Some(PowerState::Stopped),
                _ => Some(PowerState::Running),
            },
            leaving: false,
            belongings: [format!("disk-of-{id}"), format!("address-of-{id}")].into(),
            user_data: kind == Kind::WithUserData,
        };
        state.vms.insert((scope.to_owned(), own), vm);
        Example { id, name }
    }

    /// Fails, or never ends, as the cloud behaves to this VM.
    async fn answer(&self, key: Option<&(String, String)>) -> Result<(), Error> {
        let pause = key.and_then(|_| self.0.lock().pause.take());
        if let Some(time) = pause {
            return Err(throttled(time));
        }
        let behavior = self.0.lock().behavior.clone();
        let Some((behavior, _)) = behavior.filter(|(behavior, to)| {
            // Faults of the cloud as a whole affect all VMs, and every fault affects a list.
            key.is_none_or(|key| key == to) || matches!(behavior, Behavior::Hangs | Behavior::Throttled)
        }) else {
            return Ok(());
        };
        match behavior {
            Behavior::Hangs => pending().await,
            Behavior::Throttled => Err(throttled(RETRY_AFTER)),
            Behavior::Unauthorized => Err(Error::new(ErrorClass::Unauthorized, "it refuses the credentials")),
            _ => Ok(()),
        }
    }
}

impl Machine {
    /// It, or what is left of it.
    fn listed(&self, id: &str) -> Vec<Listed> {
        let tags = vec![TAG.map(str::to_owned).into()];
        if let Some(power) = self.power {
            let state = if self.leaving { PowerState::Leaving } else { power };
            return vec![Listed { state, tags, ..Listed::new(Resource::Vm, id, &*self.name) }];
        }
        let left = self.belongings.iter().map(|name| {
            let kind = if name.starts_with("disk") { Resource::Disk } else { Resource::Address };
            let vm = Some(VmRef::Id(id.to_owned()));
            Listed { vm, tags: tags.clone(), ..Listed::new(kind, &**name, &**name) }
        });
        left.collect()
    }
}

impl State {
    fn behaves(&self, behavior: Behavior, key: &(String, String)) -> bool {
        self.behavior.as_ref().is_some_and(|(now, to)| *now == behavior && to == key)
    }

    /// The VM is gone in the end, with what is its own.
    fn settle(&mut self, key: &(String, String)) {
        if self.behaves(Behavior::DeletesLater, key) {
            return;
        }
        if let Some(vm) = self.vms.get_mut(key).filter(|vm| vm.leaving) {
            (vm.power, vm.leaving) = (None, false);
            vm.belongings.clear();
        }
    }
}

/// `SCOPE/ID`, or `ID` alone.
#[allow(clippy::unnecessary_wraps, reason = "it is one of several rules")]
fn parse_id(raw: &str) -> Result<ParsedId, IdProblem> {
    let scope = raw.split_once('/').map_or(0, |(scope, _)| scope.len());
    Ok(ParsedId { canonical: raw.to_owned(), scope, key: 0 })
}

fn key(id: &str) -> (String, String) {
    let (scope, id) = id.split_once('/').unwrap_or((HERE, id));
    (scope.to_owned(), id.to_owned())
}

fn throttled(time: Duration) -> Error {
    Error::new(ErrorClass::Throttled { retry_after: Some(time) }, "it asks for fewer calls")
}

fn not_found() -> Error {
    Error::new(ErrorClass::NotFound, "there is no such VM")
}

#[async_trait]
impl Provider for Memory {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let key = key(id.as_str());
        self.answer(Some(&key)).await?;
        let mut state = self.0.lock();
        state.settle(&key);
        let is_hidden = state.behaves(Behavior::NotYetShown, &key);
        let vm = state
            .vms
            .get(&key)
            .filter(|vm| vm.power.is_some() || !vm.belongings.is_empty())
            .ok_or_else(not_found)?;
        let shown = match (vm.power.is_some() && !is_hidden, vm.leaving) {
            (true, false) => Stage::Present,
            (true, true) => Stage::Leaving,
            (false, _) => Stage::Remains(Bears::Id),
        };
        let mut belongings: Vec<_> = vm.belongings.iter().cloned().collect();
        belongings.sort();
        Ok(Vm { stage: shown, belongings, ..Vm::named(id.clone(), vm.name.clone()) })
    }

    async fn delete(&self, own: &OwnVm) -> Result<Accepted, Error> {
        let key = key(own.vm().id.as_str());
        self.answer(Some(&key)).await?;
        let mut state = self.0.lock();
        let holds = state.behaves(Behavior::HoldsBelongings, &key);
        let vm = state.vms.get_mut(&key).ok_or_else(not_found)?;
        if holds {
            vm.power = None;
            return Err(Error::new(ErrorClass::Transient, "what belongs to the VM is in use"));
        }
        vm.leaving = true;
        Ok(Accepted::default())
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.answer(None).await?;
        let cuts = matches!(self.0.lock().behavior, Some((Behavior::CutsListsOff, _)));
        let listed: Vec<_> = {
            let state = self.0.lock();
            let here = state.vms.iter().filter(|((scope, _), _)| scope == HERE);
            here.flat_map(|((_, id), vm)| vm.listed(id)).collect()
        };
        for (number, page) in listed.chunks(PAGE).enumerate() {
            if cuts && number > 0 {
                return Err(Error::new(ErrorClass::Transient, "the next page cannot be read"));
            }
            pages(page.to_vec());
        }
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.answer(None).await.map(|()| Vec::new())
    }
}

#[async_trait]
impl Peer for Memory {
    fn cloud(&self) -> &Cloud {
        &CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        Ok(Box::new(self.clone()))
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        Ok(self.add(kind, pod))
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let key = key(&example.id);
        let mut state = self.0.lock();
        state.settle(&key);
        let left = state.vms.get(&key).map(|vm| Left {
            vm: vm.power.is_some(),
            belongings: vm.belongings.len(),
            user_data: vm.user_data,
        });
        Ok(left.unwrap_or_default())
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.0.lock().vms.remove(&key(&example.id));
        Ok(())
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        self.0.lock().behavior = (behavior != Behavior::Well).then(|| (behavior, key(&example.id)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::contract::{Tally, run};

    #[tokio::test(start_paused = true)]
    async fn a_cloud_in_memory_keeps_the_contract() {
        let mut told = Vec::new();
        let tally = run(&Memory::default(), |name, outcome| {
            told.extend(outcome.as_ref().err().map(|cannot| format!("{name}: {cannot}")));
        })
        .await;
        assert_eq!(tally, Tally { passed: 18, failed: 0, inapplicable: 0 }, "{told:#?}");
    }
}
