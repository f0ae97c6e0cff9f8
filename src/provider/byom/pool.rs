//! The pool as cloud-api-adaptor writes it, and which Pod it gives a machine to *(no client)*.
//!
//! | the pool says of the address | meaning |
//! |---|---|
//! | available | no Pod has the machine |
//! | allocated to a Pod of another name | the Pod no longer has the machine |
//! | allocated to a Pod of this name, long after the PeerPod was made, and another PeerPod records it | a later Pod has the machine |
//! | allocated to a Pod of this name after the PeerPod was made, and nothing else | doubt |
//! | allocated to a Pod of this name, before the PeerPod was made | the Pod has the machine |
//! | nothing, or two things | doubt |

use std::{collections::BTreeMap, net::IpAddr};

use jiff::{SignedDuration, Timestamp};
use operator_kit::Message;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::provider::{Claim, Error, ErrorClass};

const ALLOCATED: &str = "allocatedIPs";
const AVAILABLE: &str = "availableIPs";
const VERSION: &str = "version";
const UPDATED: &str = "lastUpdated";

/// cloud-api-adaptor dates an allocation by its node's clock. The API server dates the PeerPod a moment later. The node's clock
/// may be this far ahead.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

/// An allocation that is this much later than the PeerPod, and that another PeerPod records, is that other one's. A sandbox that
/// fails to start is replaced after four minutes. Without that record it may be this PeerPod's, by a clock that is far ahead. Then
/// an absence would leave the machine allocated for good.
const CERTAIN: SignedDuration = SignedDuration::from_mins(2);

/// The pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// All of it: what this version does not know must survive.
    state: Map<String, Value>,
    pub(super) allocations: Vec<Allocation>,
    pub(super) available: Vec<IpAddr>,
}

/// A machine that a Pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Its key: `POD-SANDBOX`.
    pub(super) key: String,
    pub(super) address: IpAddr,
    pub(super) pod: String,
    pub(super) since: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    ip: IpAddr,
    pod_name: String,
    allocated_at: Timestamp,
}

impl Pool {
    /// Reads the pool. Fails if one entry cannot be read, as that could be any machine's.
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let state: Map<String, Value> = serde_json::from_str(text)?;
        let part = |name: &'static str| {
            state.get(name).cloned().ok_or_else(|| serde::de::Error::missing_field(name))
        };
        // Go writes an empty list or map as null, too.
        let entries: Option<BTreeMap<String, Entry>> = serde_json::from_value(part(ALLOCATED)?)?;
        let available: Option<Vec<IpAddr>> = serde_json::from_value(part(AVAILABLE)?)?;
        let _: i64 = serde_json::from_value(part(VERSION)?)?;
        let allocation = |(key, Entry { ip, pod_name, allocated_at })| Allocation {
            key,
            address: ip,
            pod: pod_name,
            since: allocated_at,
        };
        let allocations = entries.into_iter().flatten().map(allocation).collect();
        Ok(Self { state, allocations, available: available.unwrap_or_default() })
    }

    /// The allocation of the machine at this address, if it matches the claim. Fails with [`ErrorClass::NotFound`] only if the
    /// pool says that it does not.
    pub(super) fn held(&self, address: IpAddr, claim: &Claim) -> Result<&Allocation, Error> {
        let mut holders = self.allocations.iter().filter(|it| it.address == address);
        let is_available = self.available.contains(&address);
        match (holders.next(), holders.next(), is_available) {
            (None, _, true) => Err(absent("the pool has the address as available")),
            (None, _, false) => Err(doubt(
                ErrorClass::Invalid,
                "the pool does not have the recorded address at all: check POOL_CONFIGMAP_NAME and POOL_NAMESPACE; if the address \
                 was taken out of the pool, restart that machine and abandon the PeerPod",
            )),
            (Some(holder), None, false) => of_claim(holder, claim),
            (Some(_), _, _) => Err(doubt(
                ErrorClass::Refused,
                "the pool has the recorded address twice; correct its ConfigMap by hand",
            )),
        }
    }

    /// The pool after this allocation ended, as cloud-api-adaptor writes it.
    pub(super) fn without(
        &self,
        allocation: &Allocation,
        now: Timestamp,
    ) -> Result<String, serde_json::Error> {
        let mut state = self.state.clone();
        let entry = state.get_mut(ALLOCATED).and_then(Value::as_object_mut);
        let entry = entry.and_then(|entries| entries.remove(&allocation.key)).unwrap_or_default();
        let returned = entry["ip"].clone();
        match state.entry(AVAILABLE).or_insert(Value::Null) {
            Value::Array(available) => available.push(returned),
            empty => *empty = vec![returned].into(),
        }
        let version = state.get(VERSION).and_then(Value::as_i64).unwrap_or_default();
        state.insert(VERSION.to_owned(), version.saturating_add(1).into());
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        state.insert(UPDATED.to_owned(), now.to_string().into());
        serde_json::to_string_pretty(&state)
    }
}

impl Allocation {
    /// The sandbox of the Pod, if the key has the form that cloud-api-adaptor gives it.
    pub(super) fn sandbox(&self) -> Option<&str> {
        self.key.strip_prefix(&self.pod)?.strip_prefix('-')
    }
}

/// The allocation, if it matches the claim.
fn of_claim<'a>(holder: &'a Allocation, claim: &Claim) -> Result<&'a Allocation, Error> {
    match &claim.pod {
        // Without a Pod, nothing is deleted.
        None => Ok(holder),
        Some(pod) if *pod != holder.pod => Err(absent("the pool has given the machine to another Pod")),
        Some(_) => match holder.since.duration_since(claim.created) {
            later if later <= SKEW => Ok(holder),
            later if later > CERTAIN && claim.contested => {
                Err(absent("the pool has given the machine to a later Pod of the same name"))
            }
            _ => Err(doubt(
                ErrorClass::Refused,
                "the pool gave the machine to a Pod of this name after this PeerPod was created, by the clock of that Pod's node, so a \
                 later Pod may have it; the operator decides again when that Pod has ended; if there is no such Pod, the clock of that \
                 node is ahead: correct it, and return the machine to the pool by hand",
            )),
        },
    }
}

fn absent(message: &'static str) -> Error {
    Error::new(ErrorClass::NotFound, message)
}

fn doubt(class: ErrorClass, message: &'static str) -> Error {
    Error::new(class, Message::public(message))
}

#[cfg(test)]
mod tests;
