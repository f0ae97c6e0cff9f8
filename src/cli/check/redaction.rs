//! Removes values that must not be shown from the texts of others: a cloud's errors quote what they are about.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

/// Values that must not be shown, each with its setting's name.
#[derive(Default)]
pub(super) struct Redaction(BTreeMap<String, &'static str>);

impl Redaction {
    /// For these settings' values, and for those parts of a URI that may occur alone: host, user and paths.
    pub(super) fn of(hidden: &[(&'static str, SecretString)]) -> Self {
        let pieces = hidden.iter().flat_map(|(key, value)| {
            let value = value.expose_secret().trim();
            let pieces = [value].into_iter().chain(pieces(value));
            pieces.flat_map(spellings).map(|piece| (piece, *key)).collect::<Vec<_>>()
        });
        Self(pieces.filter(|(piece, _)| !piece.is_empty()).collect())
    }

    /// The text, in which the setting's name replaces each of its values that occurs as a word.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = None;
        while let Some(next) = rest.chars().next() {
            if let Some((piece, key)) = self.at_start(before, rest) {
                shown.extend(["(", key, ")"]);
                rest = &rest[piece.len()..];
                before = Some(')');
            } else {
                shown.push(next);
                rest = &rest[next.len_utf8()..];
                before = Some(next);
            }
        }
        shown
    }

    /// The longest value that `rest` begins with, as a word after the character `before`.
    fn at_start(&self, before: Option<char>, rest: &str) -> Option<(&str, &'static str)> {
        let joins = |one: Option<char>, two: Option<char>| {
            one.is_some_and(char::is_alphanumeric) && two.is_some_and(char::is_alphanumeric)
        };
        let stands = |piece: &str| {
            rest.strip_prefix(piece).is_some_and(|after| {
                !joins(before, piece.chars().next())
                    && !joins(piece.chars().next_back(), after.chars().next())
            })
        };
        let standing = self.0.iter().filter(|(piece, _)| stands(piece));
        standing.max_by_key(|(piece, _)| piece.len()).map(|(piece, key)| (piece.as_str(), *key))
    }
}

/// The parts of a URI that may occur alone; none for another value.
fn pieces(value: &str) -> Vec<&str> {
    let Some((scheme, rest)) = value.split_once("://") else { return Vec::new() };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = &value[..scheme.len() + "://".len() + place.len()];
    let authority = place.split('/').next().unwrap_or_default();
    let (user, server) = authority.rsplit_once('@').unwrap_or(("", authority));
    let host = match server.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => server.split(':').next().unwrap_or_default(),
    };
    let values = query.split('&').filter_map(|parameter| parameter.split_once('=')).map(|(_, value)| value);
    // Other parameters are words such as `auto`.
    let paths = values.filter(|value| value.contains(['/', '%']));
    [address, authority, user, server, host].into_iter().chain(paths).collect()
}

/// The forms of a value in a text: unchanged, between quotes, and without a URI's escapes.
fn spellings(piece: &str) -> [String; 3] {
    [piece.to_owned(), piece.escape_debug().to_string(), unescaped(piece)]
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = || u8::from_str_radix(std::str::from_utf8(after.get(..2)?).ok()?, 16).ok();
        if *first == b'%'
            && let Some(byte) = code()
        {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(hidden: &[(&'static str, &str)]) -> Redaction {
        let secret = |(key, value): &(&'static str, &str)| (*key, SecretString::from(*value));
        Redaction::of(&hidden.iter().map(secret).collect::<Vec<_>>())
    }

    #[test]
    fn a_value_that_is_a_whole_word_is_replaced_by_the_name_of_its_setting() {
        let redaction = redaction(&[("POOL", "images"), ("OTHER", "é\"1")]);
        for (text, shown) in [
            ("", ""),
            ("images", "(POOL)"),
            ("no pool 'images' in /images/a, nor images2", "no pool '(POOL)' in /(POOL)/a, nor images2"),
            ("myimages imagesé images", "myimages imagesé (POOL)"),
            ("imagesimages", "imagesimages"),
            ("a pool \"é\\\"1\", or é\"1", "a pool \"(OTHER)\", or (OTHER)"),
        ] {
            assert_eq!(redaction.apply(text), shown);
        }
    }

    #[test]
    fn all_parts_of_a_uri_that_reveal_its_target_are_replaced() {
        let uri = "qemu+ssh://jim@host-7:2222/system?keyfile=/keys/a%20b&known_hosts=/keys/known&proxy=auto";
        let redaction = redaction(&[("URI", uri), ("POOL", "URI")]);
        for (text, shown) in [
            (uri, "(URI)"),
            ("at qemu+ssh://jim@host-7:2222/system: no", "at (URI): no"),
            ("libvirt at host-7:2222 (ssh)", "libvirt at (URI) (ssh)"),
            (
                "lets jim in: /keys/a b, ssh-keygen -R '[host-7]:2222'",
                "lets (URI) in: (URI), ssh-keygen -R '[(URI)]:2222'",
            ),
            ("/keys/known has none; proxy=auto, port 2222", "(URI) has none; proxy=auto, port 2222"),
            ("what was put in place (URI)", "what was put in place ((POOL))"),
        ] {
            assert_eq!(redaction.apply(text), shown);
        }
        let six = super::tests::redaction(&[("URI", "qemu+tcp://[fe80::7]:1/system?socket=%zz%4")]);
        assert_eq!(six.apply("[fe80::7]:1 and fe80::7, %zz%4"), "(URI) and (URI), (URI)");
    }
}
