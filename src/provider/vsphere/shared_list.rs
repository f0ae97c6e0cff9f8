//! One list of the folder of pod VMs, for all who look for a VM at the same time *(no client)*.
//!
//! The proof that a VM is absent lists the whole folder. Many deletions may end together, and a tenant may write thousands of PeerPods
//! that name no VM.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::Instant;
use uuid::Uuid;

use super::CLOUD;
use crate::provider::{Error, InstanceId, Listed, POD_VM, ownership::stem_of, single_flight::SingleFlight};

/// The most VMs without a known UUID whose names are kept.
const MOST_UNKNOWN: usize = 1_000;

/// How vCenter calls a VM of which it knows neither the name nor the file at present.
const UNNAMED: &str = "Unknown";

/// How long a caller waits for another one's list, and may still make its own.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// What a whole list of the folder has shown. It takes 20 to 39 bytes for each VM: 1.1 MB for 50,000. A list has 500,000 at most.
#[derive(Debug, Default)]
pub(super) struct Shown {
    ids: HashSet<Uuid>,
    /// The names of pod VMs whose UUID vCenter does not know at present: those that are just made, or whose host or datastore is down.
    unknown: Vec<String>,
    /// Whether there are more of them.
    has_more_unknown: bool,
}

impl Shown {
    /// Notes a VM.
    pub(super) fn note(&mut self, vm: &Listed) {
        match Uuid::try_parse(&vm.id) {
            Ok(id) => _ = self.ids.insert(id),
            Err(_) if !vm.name.contains(POD_VM) && !vm.name.starts_with(UNNAMED) => {}
            Err(_) if self.unknown.len() == MOST_UNKNOWN => self.has_more_unknown = true,
            Err(_) => self.unknown.push(vm.name.clone()),
        }
    }

    /// Whether one of the VMs without a known UUID may be of the Pod with this name. A VM may have the path of its file as its name, cut
    /// where vCenter's limit of 80 characters for a name ends.
    pub(super) fn may_hide(&self, pod: Option<&str>) -> bool {
        let stem = pod.map_or_else(|| POD_VM.to_owned(), |pod| stem_of(pod, CLOUD.name_limit));
        let fits = |name: &str| name.starts_with(&stem) || stem.starts_with(name);
        let may_be_it = |name: &String| {
            name.starts_with(UNNAMED) || name.match_indices(POD_VM).any(|(at, _)| fits(&name[at..]))
        };
        self.has_more_unknown || self.unknown.iter().any(may_be_it)
    }

    /// Whether no VM has this UUID.
    pub(super) fn lacks(&self, id: &InstanceId) -> bool {
        Uuid::try_parse(id.as_str()).is_ok_and(|id| !self.ids.contains(&id))
    }
}

/// What the last list has shown. One list serves all who wait for it.
#[derive(Default)]
pub(super) struct SharedList(SingleFlight<Arc<Shown>>);

impl SharedList {
    /// What the folder shows to a caller whose own search ended at that time. A list that began earlier proves nothing to this caller.
    /// A failure counts for all whose search had ended by then. If there is no such list, `list` makes one.
    pub(super) async fn after(
        &self,
        searched: Instant,
        list: impl Future<Output = Result<Shown, Error>> + Send,
    ) -> Result<Arc<Shown>, Error> {
        let late = "another list of the folder of pod VMs took long; the operator looks again";
        self.0.after(searched, LONGEST_WAIT, late, async { list.await.map(Arc::new) }).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use futures::future::{join, join_all, join3};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::provider::{ErrorClass, Resource};

    const ID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

    const SECOND: Duration = Duration::from_secs(1);

    /// A list that takes two seconds.
    async fn made(lists: &AtomicU32) -> Result<Shown, Error> {
        lists.fetch_add(1, Relaxed);
        sleep(2 * SECOND).await;
        Ok(Shown::default())
    }

    /// Asks as one whose search ends now, and gives how long that took.
    async fn ask(shared: &SharedList, lists: &AtomicU32) -> Duration {
        let searched = Instant::now();
        shared.after(searched, made(lists)).await.unwrap();
        searched.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn one_list_serves_all_whose_search_ended_before_it_began() {
        let (shared, lists) = (SharedList::default(), AtomicU32::new(0));
        let at_once = join_all((0..20).map(|_| ask(&shared, &lists)));
        let later = async {
            sleep(SECOND).await;
            join_all((0..20).map(|_| ask(&shared, &lists))).await
        };
        let (at_once, later) = join(at_once, later).await;
        assert!(at_once.iter().all(|took| *took == 2 * SECOND), "{at_once:?}");
        assert!(
            later.iter().all(|took| *took == 3 * SECOND),
            "the list that ran had begun before: {later:?}"
        );
        assert_eq!(lists.load(Relaxed), 2);
        ask(&shared, &lists).await;
        assert_eq!(lists.load(Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_serves_those_who_waited_for_it() {
        let (shared, failed) =
            (SharedList::default(), Error::new(ErrorClass::Transient, "the list was cut off"));
        let fails = || async {
            sleep(SECOND).await;
            Err::<Shown, _>(failed.clone())
        };
        let searched = Instant::now();
        let all = join_all((0..20).map(|_| shared.after(searched, fails()))).await;
        assert!(all.iter().all(|shown| shown.as_ref().err() == Some(&failed)));
        assert_eq!(searched.elapsed(), SECOND);
        sleep(SECOND).await;
        assert!(shared.after(Instant::now(), async { Ok(Shown::default()) }).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_waited_too_long_leaves_the_next_list_to_a_later_one() {
        let (shared, lists) = (SharedList::default(), AtomicU32::new(0));
        let slow = async {
            sleep(LONGEST_WAIT + 2 * SECOND).await;
            Ok(Shown::default())
        };
        let after = async |pause: Duration| {
            sleep(pause).await;
            shared.after(Instant::now(), made(&lists)).await
        };
        let first = shared.after(Instant::now(), slow);
        let (first, second, third) = join3(first, after(SECOND), after(3 * SECOND)).await;
        assert!(first.is_ok() && third.is_ok());
        assert_eq!(second.unwrap_err().class, ErrorClass::Transient);
        assert_eq!(lists.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_given_up_serves_no_one() {
        let (shared, lists) = (SharedList::default(), AtomicU32::new(0));
        assert!(timeout(SECOND, ask(&shared, &lists)).await.is_err());
        assert_eq!(ask(&shared, &lists).await, 2 * SECOND);
        assert_eq!(lists.load(Relaxed), 2);
    }

    #[test]
    fn a_vm_is_lacking_only_if_its_uuid_is_not_there() {
        let id = InstanceId::of(&CLOUD, ID).unwrap();
        let shown = |vms: &[(&str, &str)]| {
            let mut shown = Shown::default();
            for (id, name) in vms {
                shown.note(&Listed::new(Resource::Vm, *id, *name));
            }
            (shown.lacks(&id), shown.may_hide(Some("db")))
        };
        let another = ("0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a12", "podvm-web-1a2b3c4d");
        assert_eq!(shown(&[]), (true, false));
        assert_eq!(shown(&[another, ("", "database")]), (true, false));
        assert_eq!(shown(&[another, (ID, "podvm-db-1a2b3c4d")]), (false, false));
        assert_eq!(shown(&[another, ("vm-42", "podvm-db-1a2b3c4d")]), (true, true));
        assert_eq!(
            shown(&[another, ("vm-42", "[ds] podvm-db-1a2b3c4d/podvm-db-1a2b3c4d.vmx")]),
            (true, true)
        );
        assert_eq!(shown(&[another, ("vm-42", "podvm-web-1a2b3c4d")]), (true, false), "another Pod's");
        assert_eq!(shown(&[another, ("vm-42", "Unknown")]), (true, true), "it may be any VM");
        assert_eq!(shown(&[("0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a13", "Unknown")]), (true, false));
    }

    #[test]
    fn a_name_that_is_cut_may_hide_each_pod_that_it_fits() {
        let mut shown = Shown::default();
        shown.note(&Listed::new(Resource::Vm, "vm-42", "%2fvmfs%2fvolumes%2f5f1e-0a%2fpodvm-web-7d9c5b6f4"));
        assert!(shown.may_hide(Some("web-7d9c5b6f4-x2x5k")) && shown.may_hide(Some("web-7d9c5b6f4d")));
        assert!(!shown.may_hide(Some("web-8")) && !shown.may_hide(Some("database")));
    }

    #[test]
    fn names_of_vms_without_a_uuid_are_bounded() {
        let mut shown = Shown::default();
        for number in 0..=MOST_UNKNOWN {
            assert!(!shown.may_hide(Some("web")) && shown.may_hide(None) == (number > 0));
            shown.note(&Listed::new(Resource::Vm, "vm-42", format!("podvm-db-{number:08}")));
        }
        assert_eq!(shown.unknown.len(), MOST_UNKNOWN);
        assert!(shown.may_hide(Some("web")), "it may be one of those that are not kept");
    }
}
