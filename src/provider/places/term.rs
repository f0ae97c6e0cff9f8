//! What one term of leadership has seen so far *(no client)*.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use operator_kit::watch::code as watch_code;
use tokio::time::Instant;

use super::{
    messages,
    records::{Identity, Records},
};
use crate::{
    provider::{Error, Provider, cloud_settings::PossiblePlace},
    settings::{Endpoint, Snapshot},
};

/// What one term of leadership has seen so far.
#[derive(Default)]
pub(super) struct TermState {
    /// The `ConfigMap`, once it was read. An empty one without a version if it does not exist.
    pub(super) object: Option<ConfigMap>,
    /// The versions that this process has replaced, and which the watch may still bring.
    pub(super) superseded: Vec<String>,
    /// Why it cannot be read.
    pub(super) unreadable: Option<Error>,
    /// When to ask for the identity again: it may be another one than is recorded.
    pub(super) doubt: Option<Instant>,
    /// When that was last noted.
    pub(super) last_doubt: Option<Instant>,
    /// Where VMs may be by settings that were mounted in this term, or that were reported as cloud-api-adaptor's, until that is recorded:
    /// the settings may be set back before.
    ///
    /// It ends with the term. The next leader records what is mounted then, and its controller of PeerPodConfigs reports again. That is
    /// usually the same: a write takes less than a second, and the files of a Pod change about a minute after their `ConfigMap`. So a
    /// place is lost only if no leader could write it until the settings were set back, and the one that saw it has ended before it
    /// could.
    ///
    /// Settings that were set back before the files changed were never mounted. They are reported if a PeerPodConfig names them and its
    /// cloud-api-adaptor is deployed. Otherwise their place is not recorded, although a cloud-api-adaptor that started meanwhile has
    /// them. A person must add the entry.
    pub(super) unrecorded: Vec<PossiblePlace>,
    /// The settings by which the cloud was asked, and who answered, if another process changed the record before that was written.
    pub(super) answered: Option<(Arc<Snapshot>, Identity)>,
    /// The place of which it was logged that it is recorded.
    pub(super) announced: Option<Endpoint>,
    /// The settings and the provider that the cloud refused. The provider remembers the refusal. A new one would try the same
    /// password again and again, until the cloud locks the user out.
    pub(super) refused: Option<Asked>,
}

/// Settings, and the provider opened with them.
pub(super) type Asked = (Arc<Snapshot>, Arc<dyn Provider>);

impl TermState {
    /// Notes where VMs may be.
    pub(super) fn note(&mut self, place: PossiblePlace) {
        // An unknown place is recorded only after one that can be read. So what counts is when it was noted last.
        if matches!(place, PossiblePlace::Unknown(_)) {
            self.unrecorded.retain(|noted| *noted != place);
        }
        if !self.unrecorded.contains(&place) {
            self.unrecorded.push(place);
        }
    }

    /// The entries to keep if VMs may also be wherever that is not recorded.
    pub(super) fn with_unrecorded(&self, before: &Records, now: Timestamp) -> Records {
        self.unrecorded.iter().fold(before.clone(), |records, place| match place {
            PossiblePlace::Unknown(clouds) => records.with_unknown(|cloud| clouds.may_be(cloud), now),
            PossiblePlace::At(cloud, endpoint) => records.with_former(cloud, &endpoint.address, now),
        })
    }

    /// Takes in what this process wrote.
    pub(super) fn wrote(&mut self, object: ConfigMap) {
        let before = self.object.replace(object);
        self.superseded.extend(before.and_then(|before| before.metadata.resource_version));
    }

    /// Takes in what the watch brought.
    pub(super) fn take(&mut self, object: watcher::Result<Option<ConfigMap>>, name: &str) {
        match object {
            Ok(object) => {
                self.unreadable = None;
                let object = object.unwrap_or_default();
                // After several writes in a row the watch brings all but the last one late: many, if it was interrupted.
                let version = object.metadata.resource_version.as_ref();
                if !version.is_some_and(|version| self.superseded.contains(version)) {
                    self.superseded.clear();
                    self.object = Some(object);
                }
            }
            // What was read before still counts: this process alone writes it.
            Err(error) => self.unreadable = Some(messages::failed("read", name, watch_code(&error), &error)),
        }
    }

    /// Notes that the time for the first read has passed.
    pub(super) fn waited(&mut self, name: &str) {
        if self.object.is_none() && self.unreadable.is_none() {
            self.unreadable = Some(messages::failed("read", name, None, &"the API server does not answer"));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::provider::ServedCloud;

    #[test]
    fn an_unknown_place_is_recorded_beside_those_that_were_named_before_it() {
        let at = |address: &str| {
            PossiblePlace::At("libvirt", Endpoint { setting: "LIBVIRT_URI", address: address.to_owned() })
        };
        let unknown = || PossiblePlace::Unknown(ServedCloud::any_but([]));
        for (noted, recorded) in [
            (vec![at("a"), at("b"), at("a")], vec!["a", "b"]),
            (vec![at("a"), unknown()], vec!["", "a"]),
            // As in each step while newer settings cannot be read.
            (vec![at("a"), unknown(), at("a"), unknown()], vec!["", "a"]),
            // A first installation whose settings are corrected.
            (vec![unknown(), at("a")], vec!["a"]),
            (vec![unknown(), at("a"), unknown()], vec!["", "a"]),
            (vec![at("a"), unknown(), at("b"), at("a")], vec!["", "a", "b"]),
        ] {
            let (mut term, text) = (TermState::default(), format!("{noted:?}"));
            let is_first = |(index, place): &(usize, &PossiblePlace)| !noted[..*index].contains(place);
            let different = noted.iter().enumerate().filter(is_first).count();
            for place in &noted {
                term.note(place.clone());
            }
            assert_eq!(term.unrecorded.len(), different, "{text}");
            let records = term.with_unrecorded(&Records::default(), Timestamp::UNIX_EPOCH);
            let mut addresses: Vec<_> = records.former("libvirt", "").map(|(_, it)| &*it.address).collect();
            addresses.sort_unstable();
            assert_eq!(addresses, recorded, "{text}");
        }
    }

    #[test]
    fn a_write_that_the_watch_brings_late_does_not_count_any_more() {
        let object = |version: &str| {
            let resource_version = Some(version.to_owned());
            let metadata = ObjectMeta { resource_version, ..ObjectMeta::default() };
            ConfigMap { metadata, ..ConfigMap::default() }
        };
        let mut term = TermState::default();
        let take = |term: &mut TermState, brought: Option<ConfigMap>| {
            term.take(Ok(brought), "operator/places");
            term.object.clone().and_then(|object| object.metadata.resource_version)
        };
        assert_eq!(take(&mut term, None), None);
        assert_eq!(take(&mut term, Some(object("1"))).as_deref(), Some("1"));
        for version in ["2", "3", "4"] {
            term.wrote(object(version));
        }
        for late in ["1", "2", "3", "4"] {
            assert_eq!(take(&mut term, Some(object(late))).as_deref(), Some("4"));
        }
        assert_eq!(take(&mut term, Some(object("5"))).as_deref(), Some("5"), "another process wrote it");
        assert_eq!(take(&mut term, None), None, "it was deleted");
    }
}
