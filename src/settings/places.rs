//! The places that the settings named before those in force (pure).

use jiff::Timestamp;

use super::{ProviderSettings, Snapshot};

/// So many earlier places are remembered.
const MOST: usize = 4;

/// Where a cloud keeps machines: one who asks in another place hears that they do not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The setting that names it.
    pub setting: &'static str,
    /// What it is called, for people and to tell it from others; without anything secret.
    pub name: String,
}

/// A place that the settings named before, and name no more.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// The place.
    pub place: Place,
    /// The last settings that named it.
    pub settings: ProviderSettings,
    /// When other ones came into force.
    pub until: Timestamp,
}

/// The places before `next`, the last one first, after those before `current`. A place that is named again is none of them.
pub(super) fn before(
    next: &Snapshot,
    current: Option<&Snapshot>,
    earlier: &[Earlier],
    now: Timestamp,
) -> Vec<Earlier> {
    let place = next.provider.place();
    let left = current.and_then(|current| {
        let settings = current.provider.clone();
        Some(Earlier { place: settings.place()?, settings, until: now })
    });
    let all = left.into_iter().chain(earlier.iter().cloned());
    all.filter(|earlier| Some(&earlier.place) != place.as_ref()).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::settings::Raw;

    fn at(host: &str) -> Snapshot {
        let settings =
            [("CLOUD_PROVIDER", "libvirt".to_owned()), ("LIBVIRT_URI", format!("qemu+ssh://{host}/system"))];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.into()));
        Snapshot::parse(&Raw { settings: settings.into(), credentials: BTreeMap::new() }).unwrap()
    }

    #[test]
    fn the_last_four_other_places_are_remembered_each_until_it_was_left() {
        let mut earlier = Vec::new();
        let mut current: Option<Snapshot> = None;
        let mut names = Vec::new();
        for (second, host) in (0..).zip(["a", "root@a", "b", "not a host", "a", "c", "d", "e", "f"]) {
            let next = at(host);
            let now = Timestamp::from_second(second).unwrap();
            earlier = before(&next, current.as_ref(), &earlier, now);
            current = Some(next);
            let name = |it: &Earlier| format!("{}{}", &it.place.name[11..12], it.until.as_second());
            names.push(earlier.iter().map(name).collect::<Vec<_>>().join(" "));
        }
        assert_eq!(names, ["", "", "a2", "b3 a2", "b3", "a5 b3", "c6 a5 b3", "d7 c6 a5 b3", "e8 d7 c6 a5"]);
    }
}
