//! The places that the settings have named, as they are kept *(no client)*.

use std::collections::BTreeMap;

use jiff::{Timestamp, Unit};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::settings::Endpoint;

/// The most former places of a cloud. With more, nothing is decided until an administrator has deleted some.
pub(super) const MOST_FORMER: usize = 8;

/// What distinguishes those who may answer at the same address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Identity {
    /// The cloud has no identities.
    Unnamed,
    /// What [`Provider::identity`](crate::provider::Provider::identity) gave.
    Named(String),
}

impl Identity {
    /// The identity that a cloud gave.
    pub(super) fn new(name: Option<String>) -> Self {
        name.map_or(Self::Unnamed, Self::Named)
    }

    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Unnamed => None,
            Self::Named(name) => Some(name),
        }
    }
}

/// One place. It contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The cloud.
    pub(super) cloud: String,
    /// Where it is, without user and credentials. Empty if that could not be read: see [`Records::with_unknown`].
    pub(super) address: String,
    /// Who answers there; `None` until one has answered.
    #[serde(default, rename = "host", skip_serializing_if = "Option::is_none")]
    pub(super) identity: Option<Identity>,
    /// Since when that one answers, if another one answered before.
    #[serde(default, rename = "moved", skip_serializing_if = "Option::is_none")]
    pub(super) moved_at: Option<Timestamp>,
    /// When the settings began to name another place; `None` for the place that they name. Of an unknown place: when the operator first
    /// found that it could not read where settings point. Of a place that only cloud-api-adaptor's settings have named: when the operator
    /// first found that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Timestamp>,
}

/// All places, by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Records(BTreeMap<String, Record>);

/// An entry that is no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable(pub(super) String);

impl Record {
    /// A place whose identity is not known yet.
    fn at(cloud: &str, address: &str, until: Option<Timestamp>) -> Self {
        Self { cloud: cloud.to_owned(), address: address.to_owned(), identity: None, moved_at: None, until }
    }
}

impl Records {
    /// Reads what was written.
    pub(super) fn read(data: &BTreeMap<String, String>) -> Result<Self, Unreadable> {
        let record = |(key, text): (&String, &String)| {
            let record = serde_json::from_str(text).map_err(|_| Unreadable(key.clone()))?;
            Ok((key.clone(), record))
        };
        data.iter().map(record).collect::<Result<_, _>>().map(Self)
    }

    /// The entry of a place.
    pub(super) fn of(&self, key: &str) -> Option<&Record> {
        self.0.get(key)
    }

    /// The other places of a cloud.
    pub(super) fn former<'a>(
        &'a self,
        cloud: &'a str,
        key: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Record)> {
        let all = self.0.iter().map(|(key, record)| (key.as_str(), record));
        all.filter(move |(other, record)| *other != key && record.cloud == cloud)
    }

    /// The entries to keep while the settings name this place, with this identity if it is known.
    pub(super) fn naming(
        &self,
        cloud: &str,
        endpoint: &Endpoint,
        identity: Option<&Identity>,
        now: Timestamp,
    ) -> Self {
        let (key, now) = (key(cloud, &endpoint.address), now.round(Unit::Second).unwrap_or(now));
        let mut next = self.clone();
        // The entries of other clouds belong to the keepers of those clouds.
        let others = next.0.iter_mut().filter(|(other, record)| **other != key && record.cloud == cloud);
        for (_, other) in others {
            other.until.get_or_insert(now);
        }
        let record = next.0.entry(key).or_insert_with(|| Record::at(cloud, &endpoint.address, None));
        record.until = None;
        if let Some(identity) = identity {
            if record.identity.as_ref().is_some_and(|before| before != identity) {
                record.moved_at = Some(now);
            }
            record.identity = Some(identity.clone());
        }
        next
    }

    /// The entries to keep if VMs of these clouds may be where settings point that the operator cannot use: one entry without an address
    /// for each. A cloud without any entry never had usable settings. It gets none, so that a first installation whose settings are
    /// corrected holds no PeerPod.
    pub(super) fn with_unknown(&self, is_concerned: impl Fn(&str) -> bool, now: Timestamp) -> Self {
        let mut next = self.clone();
        // An administrator may have added one under another key.
        let has_one = |cloud: &str| self.0.values().any(|it| it.cloud == cloud && it.address.is_empty());
        for Record { cloud, .. } in self.0.values() {
            if is_concerned(cloud) && !has_one(cloud) {
                next = next.with_former(cloud, "", now);
            }
        }
        next
    }

    /// The entries to keep if VMs of this cloud may be at this address. If the settings in force name it, [`naming`](Self::naming) has to
    /// follow.
    pub(super) fn with_former(&self, cloud: &str, address: &str, now: Timestamp) -> Self {
        let now = now.round(Unit::Second).unwrap_or(now);
        let mut next = self.clone();
        next.0.entry(key(cloud, address)).or_insert_with(|| Record::at(cloud, address, Some(now)));
        next
    }

    /// Whether there are more places of this cloud than the operator asks in. In an unknown one it asks nothing.
    pub(super) fn is_full(&self, cloud: &str) -> bool {
        let known = self.0.values().filter(|record| record.cloud == cloud && !record.address.is_empty());
        known.count() > MOST_FORMER + 1
    }

    /// The entries of places that the settings do not name, and that they still named `before` or that were not recorded then.
    pub(super) fn newly_former<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'a str, &'a Record)> {
        let all = self.0.iter().map(|(key, record)| (key.as_str(), record));
        all.filter(move |(key, record)| {
            record.until.is_some() && before.of(key).is_none_or(|it| it.until.is_none())
        })
    }

    /// The entries that differ from `before`, as they are written.
    pub(super) fn changed_since(&self, before: &Self) -> Result<BTreeMap<&str, String>, serde_json::Error> {
        let changed = self.0.iter().filter(|(key, record)| before.of(key) != Some(record));
        changed.map(|(key, record)| Ok((key.as_str(), serde_json::to_string(record)?))).collect()
    }
}

/// The key of a place's entry. Tenants see it, and learn nothing about the address from it.
pub(super) fn key(cloud: &str, address: &str) -> String {
    let hash = digest(&SHA256, format!("{cloud} {address}").as_bytes());
    let hash = hash.as_ref().first_chunk().map_or(0, |start| u32::from_be_bytes(*start));
    format!("{cloud}-{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Endpoint {
        Endpoint { setting: "LIBVIRT_URI", address: address.to_owned() }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn named(identity: &str) -> Identity {
        Identity::Named(identity.to_owned())
    }

    /// An entry where this identity answers since then, and that the settings named until then.
    fn record(
        address: &str,
        identity: Option<Identity>,
        moved_at: Option<i64>,
        until: Option<i64>,
    ) -> Record {
        let (moved_at, until) = (moved_at.map(second), until.map(second));
        Record { cloud: "libvirt".to_owned(), address: address.to_owned(), identity, moved_at, until }
    }

    fn entries(records: &Records) -> Vec<Record> {
        let mut all: Vec<_> = records.0.values().cloned().collect();
        all.sort_by(|a, b| a.address.cmp(&b.address));
        all
    }

    /// Names these places one second after another.
    fn after(named: &[(&str, Option<Identity>)]) -> Records {
        let named = (1..).zip(named);
        named.fold(Records::default(), |records, (time, (address, identity))| {
            records.naming("libvirt", &at(address), identity.as_ref(), second(time))
        })
    }

    #[test]
    fn a_place_that_is_named_again_is_no_longer_a_former_place() {
        let records = after(&[("a", Some(Identity::Unnamed)), ("b", None), ("a", None)]);
        let expected = [record("a", Some(Identity::Unnamed), None, None), record("b", None, None, Some(3))];
        assert_eq!(entries(&records), expected);
        let current = key("libvirt", "a");
        let former: Vec<_> = records.former("libvirt", &current).map(|(_, it)| &*it.address).collect();
        assert_eq!(former, ["b"]);
        assert_eq!(records.former("aws", "none").count(), 0, "another cloud has no such place");
        let same = records.naming("libvirt", &at("a"), Some(&Identity::Unnamed), second(9));
        assert_eq!(same, records, "nothing is to be written");
        let beside = records.naming("aws", &at("eu-1"), None, second(9));
        assert_eq!(beside.of(&current), records.of(&current), "each cloud has a current place");
    }

    #[test]
    fn only_a_change_between_known_identities_at_an_address_is_a_move() {
        for (identities, identity, moved_at) in [
            (vec![None, Some("1"), Some("1"), None], "1", None),
            (vec![Some("1"), Some("2"), None], "2", Some(2)),
            (vec![Some("1"), Some("2"), Some("1")], "1", Some(3)),
        ] {
            let steps: Vec<_> = identities.into_iter().map(|it| ("a", it.map(named))).collect();
            assert_eq!(entries(&after(&steps)), [record("a", Some(named(identity)), moved_at, None)]);
        }
    }

    #[test]
    fn no_place_is_forgotten_for_another_one() {
        let names: Vec<_> = (0..=MOST_FORMER).map(|number| format!("host-{number}")).collect();
        let steps: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
        let most = after(&steps);
        assert!(!most.is_full("libvirt"));
        let further = most.naming("libvirt", &at("further"), None, second(99));
        assert!(further.of(&key("libvirt", "further")).is_some());
        let set_back = further.naming("libvirt", &at("host-3"), None, second(99));
        for full in [further, set_back] {
            assert!(full.is_full("libvirt") && !full.is_full("aws"));
        }
        assert!(!most.with_unknown(|_| true, second(99)).is_full("libvirt"), "it costs no question");
    }

    #[test]
    fn an_unknown_place_is_kept_of_a_cloud_that_had_a_known_one() {
        let none = Records::default();
        assert_eq!(none.with_unknown(|_| true, second(1)), none, "no settings were ever usable");
        let known = after(&[("a", None)]);
        assert_eq!(known.with_unknown(|cloud| cloud == "aws", second(2)), known, "of another cloud");
        let unknown = known.with_unknown(|cloud| cloud == "libvirt", second(2));
        assert_eq!(entries(&unknown), [record("", None, None, Some(2)), record("a", None, None, None)]);
        assert_eq!(unknown.with_unknown(|_| true, second(3)), unknown, "nothing is to be written");
        let set_back = unknown.naming("libvirt", &at("a"), None, second(4));
        assert_eq!(set_back, unknown, "it stays until an administrator deletes it");
        let current = key("libvirt", "a");
        let former: Vec<_> = set_back.former("libvirt", &current).map(|(key, _)| key.to_owned()).collect();
        assert_eq!(former, [key("libvirt", "")]);
    }

    #[test]
    fn a_place_becomes_a_former_one_once() {
        let before = after(&[("a", None)]);
        let next = before.with_former("libvirt", "b", second(2)).with_unknown(|_| true, second(2));
        let next = next.naming("libvirt", &at("c"), None, second(2));
        let mut addresses: Vec<_> = next.newly_former(&before).map(|(_, it)| &*it.address).collect();
        addresses.sort_unstable();
        assert_eq!(addresses, ["", "a", "b"]);
        let later = next.naming("libvirt", &at("c"), Some(&Identity::Unnamed), second(3));
        assert_eq!(later.newly_former(&next).count(), 0);
        let set_back = later.naming("libvirt", &at("a"), None, second(4));
        let addresses: Vec<_> = set_back.newly_former(&later).map(|(_, it)| &*it.address).collect();
        assert_eq!(addresses, ["c"]);
    }

    #[test]
    fn written_records_are_read_back_and_unreadable_ones_are_named() {
        let records =
            after(&[("a", Some(named("1"))), ("a", Some(named("2"))), ("b", Some(Identity::Unnamed))]);
        let written = records.changed_since(&Records::default()).unwrap();
        let data: BTreeMap<String, String> =
            written.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        assert_eq!(Records::read(&data), Ok(records.clone()));
        // Other versions read this, and users write it by hand.
        let a = r#"{"cloud":"libvirt","address":"a","host":{"named":"2"},"moved":"1970-01-01T00:00:02Z","until":"1970-01-01T00:00:03Z"}"#;
        assert_eq!(data[&key("libvirt", "a")], a);
        assert_eq!(data[&key("libvirt", "b")], r#"{"cloud":"libvirt","address":"b","host":"unnamed"}"#);
        assert!(records.changed_since(&records).unwrap().is_empty());
        for text in ["", "{}", "null", "[]", r#"{"cloud": "libvirt"}"#] {
            let data = [("mine".to_owned(), text.to_owned())].into();
            assert_eq!(Records::read(&data), Err(Unreadable("mine".to_owned())), "{text}");
        }
        let by_hand =
            [("x".to_owned(), r#"{"cloud":"libvirt","address":"qemu+ssh://old:22/system"}"#.to_owned())];
        assert_eq!(Records::read(&by_hand.into()).unwrap().former("libvirt", "y").count(), 1);
    }

    #[test]
    fn a_key_can_be_one_of_a_config_map_and_shows_no_address() {
        let key = key("libvirt", "qemu+ssh://kvm-1:22/system");
        assert_eq!(key.len(), "libvirt-12345678".len());
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{key}");
    }
}
