//! Rules for the lists of all providers: a list has each thing once, and what is kept of one thing is bounded *(no client)*.

use std::{collections::HashSet, hash::BuildHasher as _, hash::RandomState};

use operator_kit::Message;

use super::{Error, ErrorClass, Listed, VmRef};

/// The most things of one list. Of each, 8 bytes are kept while the list is read.
const MOST_LISTED: usize = 100_000;

/// The most bytes of identifier and names of one thing. No pod VM has as many, and no thing that came with a pod VM.
const LONGEST: usize = 4 * 1024;

/// The most tags that are kept of one thing.
const MOST_TAGS: usize = 64;

/// The most bytes of key and value of a tag that is kept.
const LONGEST_TAG: usize = 512;

/// The most bytes of all tags that are kept of one thing.
const ALL_TAGS: usize = 8 * 1024;

/// One list, page by page.
#[derive(Default)]
pub(super) struct Listing {
    random: RandomState,
    /// The hashes of what was listed so far.
    seen: HashSet<u64>,
    is_full: bool,
}

impl Listing {
    /// The things of a page that no earlier page had. A thing may be on two pages if the list changes while it is read.
    pub(super) fn page(&mut self, page: Vec<Listed>) -> Vec<Listed> {
        page.into_iter().filter_map(|listed| self.once(listed)).collect()
    }

    /// Fails if the list had too many things to detect all duplicates.
    pub(super) fn end(self, cloud: &str) -> Result<(), Error> {
        if self.is_full {
            let message = format!("{cloud} lists more than {MOST_LISTED} VMs and other things");
            return Err(Error::new(ErrorClass::Invalid, Message::public(message)));
        }
        Ok(())
    }

    fn once(&mut self, listed: Listed) -> Option<Listed> {
        let vm = listed.vm.as_ref().map_or(0, |(VmRef::Name(vm) | VmRef::Id(vm))| vm.len());
        if listed.id.len() + listed.name.len() + vm > LONGEST {
            return None;
        }
        let hash = self.random.hash_one((listed.kind, &listed.id));
        if self.seen.contains(&hash) {
            return None;
        }
        self.is_full |= self.seen.len() >= MOST_LISTED;
        if self.is_full {
            return None;
        }
        self.seen.insert(hash);
        Some(Listed { tags: bounded(listed.tags), ..listed })
    }
}

/// The tags to keep. Every user with the right to tag the thing writes them, so the shortest are kept: in a cloud that allows at
/// most [`MOST_TAGS`], no other tag displaces one of at most 128 bytes.
fn bounded(mut tags: Vec<(String, String)>) -> Vec<(String, String)> {
    let length = |(key, value): &(String, String)| key.len() + value.len();
    tags.retain(|tag| length(tag) <= LONGEST_TAG);
    tags.sort_unstable_by(|a, b| length(a).cmp(&length(b)).then_with(|| a.cmp(b)));
    let mut all = 0;
    let mut fits = |tag| {
        all += length(tag);
        all <= ALL_TAGS
    };
    let count = tags.iter().take(MOST_TAGS).take_while(|tag| fits(tag)).count();
    tags.truncate(count);
    tags.shrink_to_fit();
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Resource;

    fn vm(id: &str) -> Listed {
        Listed::new(Resource::Vm, id, "podvm-a-1a2b3c4d")
    }

    #[test]
    fn an_item_on_two_pages_is_listed_once() {
        let mut listing = Listing::default();
        let ids = |page: Vec<Listed>| page.into_iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(ids(listing.page(vec![vm("a"), vm("b"), vm("a")])), ["a", "b"]);
        let disk = Listed::new(Resource::Disk, "b", "podvm-a-1a2b3c4d");
        assert_eq!(ids(listing.page(vec![vm("b"), vm("c"), disk])), ["c", "b"], "a disk is no VM");
        assert!(listing.end("memory").is_ok());
    }

    #[test]
    fn a_list_that_is_too_long_fails() {
        let end = |count: usize| {
            let mut listing = Listing::default();
            let page = listing.page((0..count).chain([0]).map(|number| vm(&number.to_string())).collect());
            assert_eq!(page.len(), MOST_LISTED);
            listing.end("memory").map_err(|error| error.class)
        };
        assert_eq!([end(MOST_LISTED), end(MOST_LISTED + 1)], [Ok(()), Err(ErrorClass::Invalid)]);
    }

    #[test]
    fn items_with_oversized_names_are_not_listed() {
        let mut listing = Listing::default();
        let long = "x".repeat(LONGEST);
        assert!(listing.page(vec![vm(&long)]).is_empty());
        assert!(listing.page(vec![Listed { vm: Some(VmRef::Name(long)), ..vm("a") }]).is_empty());
    }

    /// A tag of this many bytes, with a key of three digits.
    fn tag(number: usize, bytes: usize) -> (String, String) {
        (format!("{number:03}"), "x".repeat(bytes - 3))
    }

    #[test]
    fn the_shortest_tags_are_kept_in_any_order() {
        let ascending: Vec<_> = (0..64).map(|number| tag(number, 200 + number)).collect();
        let kept = bounded(ascending.clone());
        assert_eq!(kept, ascending[..kept.len()]);
        assert!(
            kept.len() > 30
                && kept.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= ALL_TAGS
        );
        assert_eq!(bounded(ascending.into_iter().rev().collect()), kept);
        assert_eq!(bounded((0..100).map(|number| tag(number, 4)).collect()).len(), MOST_TAGS);
        assert_eq!(bounded(vec![tag(1, LONGEST_TAG + 1), tag(2, LONGEST_TAG)]), [tag(2, LONGEST_TAG)]);
    }

    #[test]
    fn no_tag_displaces_a_short_one() {
        let mine = tag(999, 128);
        for bytes in [4, 128, 129, LONGEST_TAG] {
            let others = (0..MOST_TAGS - 1).map(|number| tag(number, bytes));
            assert!(bounded(others.chain([mine.clone()]).collect()).contains(&mine), "{bytes}");
        }
    }

    #[test]
    fn tags_of_a_listed_thing_are_bounded() {
        let tags = (0..100).map(|number| tag(number, 4)).collect();
        let page = Listing::default().page(vec![Listed { tags, ..vm("a") }]);
        assert_eq!(page[0].tags.len(), MOST_TAGS);
    }
}
