//! Since when machines are no longer those of their PeerPods' Pods, as far as this process has seen it *(no client)*.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    time::Duration,
};

use operator_kit::Message;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::provider::{Claim, Error, ErrorClass};

/// The time that cloud-api-adaptor gives itself for an allocation. It may write what it read before a machine returned, and so undo
/// that return, until this time has passed.
pub(super) const MAY_BE_UNDONE: Duration = Duration::from_secs(30);

/// How long a look counts without another one. What happened to the machine in between is not known.
const COUNTS: Duration = Duration::from_secs(2 * MAY_BE_UNDONE.as_secs());

/// The same for a machine that the pool gives to its former Pod again. There are few, as only cloud-api-adaptor writes such a pool. Its
/// PeerPod is looked at again within minutes.
const CAME_BACK_COUNTS: Duration = Duration::from_secs(60 * 60);

/// The most machines that are remembered.
const MOST: usize = 10_000;

/// The machines that were available or another Pod's, each for the PeerPod that claims it.
#[derive(Default)]
pub(super) struct Returns {
    machines: Mutex<Machines>,
    hasher: RandomState,
}

/// The key is the hash of the machine and of the claim: a claim may contain long texts, which a hash does not keep.
type Machines = HashMap<u64, Returned>;

/// A machine that was available or another Pod's.
struct Returned {
    /// Since when it is. `None`: the pool gives it to the Pod again.
    since: Option<Instant>,
    /// When this process saw it last.
    seen: Instant,
}

impl Returned {
    fn counts(&self, now: Instant) -> bool {
        now - self.seen < if self.since.is_some() { COUNTS } else { CAME_BACK_COUNTS }
    }
}

impl Returns {
    /// Notes that the pool does not give the machine to the Pod. Fails while that may be undone, whichever process returned the machine.
    pub(super) fn absent(&self, address: IpAddr, claim: &Claim) -> Result<(), Error> {
        // Without a Pod, the operator would not return the machine a second time.
        if claim.pod.is_none() {
            return Ok(());
        }
        let (key, now) = (self.key(address, claim), Instant::now());
        let mut all = self.machines.lock();
        let has_no_room = |all: &Machines| all.len() >= MOST && !all.contains_key(&key);
        if has_no_room(&all) {
            all.retain(|_, it| it.counts(now));
        }
        // Without room, it waits until others are done.
        let mut since = now;
        if !has_no_room(&all) {
            let it = all.entry(key).or_insert(Returned { since: None, seen: now });
            let known = it.since.filter(|_| it.counts(now));
            since = known.unwrap_or(now);
            *it = Returned { since: Some(since), seen: now };
        }
        let check_again_after = MAY_BE_UNDONE.saturating_sub(now - since);
        if check_again_after.is_zero() {
            return Ok(());
        }
        let message = "the machine is no longer this Pod's; cloud-api-adaptor may undo that for a moment, so the operator looks again";
        Err(Error::new(ErrorClass::Unsettled { check_again_after }, Message::public(message)))
    }

    /// Notes that the pool gives the machine to the Pod. Returns whether it did not before.
    pub(super) fn undone(&self, address: IpAddr, claim: &Claim) -> bool {
        let key = self.key(address, claim);
        let mut all = self.machines.lock();
        let Some(it) = all.get_mut(&key) else { return false };
        *it = Returned { since: None, seen: Instant::now() };
        true
    }

    fn key(&self, address: IpAddr, claim: &Claim) -> u64 {
        self.hasher.hash_one((address, &claim.pod, claim.created))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_memory_is_bounded_and_a_crowd_makes_others_wait_and_no_longer() {
        let (returns, address) = (Returns::default(), IpAddr::from([10, 0, 0, 1]));
        let absent = |number: usize| {
            let claim = Claim { pod: Some(format!("web-{number}")), ..Claim::default() };
            returns.absent(address, &claim).is_ok()
        };
        for number in 0..=MOST {
            assert!(!absent(number));
        }
        assert_eq!(returns.machines.lock().len(), MOST);
        advance(MAY_BE_UNDONE).await;
        assert!(absent(0) && !absent(MOST), "there is no room for that one yet");
        advance(MAY_BE_UNDONE).await;
        assert!(!absent(MOST), "now it is remembered");
        advance(MAY_BE_UNDONE).await;
        assert!(absent(MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_look_does_not_count_and_a_full_memory_keeps_which_machines_came_back() {
        let (returns, address) = (Returns::default(), IpAddr::from([10, 0, 0, 1]));
        let claim = |number: usize| Claim { pod: Some(format!("web-{number}")), ..Claim::default() };
        assert!(returns.absent(address, &claim(0)).is_err() && returns.undone(address, &claim(0)));
        assert!(returns.absent(address, &claim(1)).is_err());
        advance(COUNTS).await;
        assert!(returns.absent(address, &claim(1)).is_err(), "it may have been allocated meanwhile");
        for number in 1..=MOST {
            let _ = returns.absent(address, &claim(number));
        }
        assert!(returns.absent(address, &claim(MOST)).is_err() && returns.machines.lock().len() == MOST);
        assert!(returns.undone(address, &claim(0)));
    }
}
