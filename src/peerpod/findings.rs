//! What a listing of the cloud shows of PeerPods *(no client)*. The sweep finds it, and the controller reads it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;

use super::decide::PeerPodFinding;

/// What the sweep found out about PeerPods, for their controller, by their UIDs. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PeerPodFindings(Arc<Mutex<HashMap<String, (&'static str, PeerPodFinding)>>>);

impl PeerPodFindings {
    /// What was found out about the PeerPod with this UID.
    pub fn of(&self, uid: Option<&str>) -> Option<PeerPodFinding> {
        self.0.lock().get(uid?).map(|(_, finding)| *finding)
    }

    /// Replaces what is known at this cloud. Returns the UIDs of those about which something else is known now.
    pub fn replace(&self, cloud: &'static str, findings: HashMap<String, PeerPodFinding>) -> HashSet<String> {
        let mut known = self.0.lock();
        let before: HashMap<_, _> = known.extract_if(|_, (of, _)| *of == cloud).collect();
        let changed = |uid: &&String| before.get(*uid).map(|(_, it)| it) != findings.get(*uid);
        let uids = before.keys().chain(findings.keys());
        let changed = uids.filter(changed).cloned().collect();
        known.extend(findings.into_iter().map(|(uid, finding)| (uid, (cloud, finding))));
        changed
    }
}
