//! How a VM is named *(no client)*.

use crate::provider::{IdProblem, ParsedId};

/// The part of a URL before a full path. A URL of another host is of another cloud.
const PREFIXES: [&str; 3] = [
    "https://www.googleapis.com/compute/v1/",
    "https://compute.googleapis.com/compute/v1/",
    "//compute.googleapis.com/",
];

/// Reads a name, whose zone is unknown, or a full path. cloud-api-adaptor records names.
pub(super) fn parse(raw: &str) -> Result<ParsedId, IdProblem> {
    if is_name(raw) {
        return Ok(ParsedId::unscoped(raw));
    }
    let path = PREFIXES.iter().find_map(|prefix| raw.strip_prefix(prefix)).unwrap_or(raw);
    if let ["projects", project, "zones", zone, "instances", name] = path.split('/').collect::<Vec<_>>()[..]
        && is_project(project)
        && is_name(zone)
        && is_name(name)
    {
        let key = path.len() - name.len();
        return Ok(ParsedId { canonical: path.to_owned(), scope: key - "/instances/".len(), key });
    }
    let number = raw.bytes().all(|byte| byte.is_ascii_digit());
    Err(IdProblem::Malformed {
        expected: "an instance's name or its path projects/PROJECT/zones/ZONE/instances/NAME",
        hint: number.then_some(
            "it is an instance's number, which Compute Engine does not look up in a whole project",
        ),
    })
}

/// Whether this is the ID of a project. Its number would name the same VM in another way.
pub(super) fn is_project(text: &str) -> bool {
    text.len() < 100 && is_word(text, b"-.:")
}

/// Whether this is the name of an instance or of a zone.
fn is_name(text: &str) -> bool {
    text.len() <= 63 && !text.ends_with('-') && is_word(text, b"-")
}

/// Whether this begins with a lower-case letter, and has no others than such letters, digits and `further` ones.
fn is_word(text: &str, further: &[u8]) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || further.contains(&byte);
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::InstanceId;

    const PATH: &str = "projects/peer-pods/zones/europe-west4-a/instances/podvm-web-1a2b3c4d";

    #[test]
    fn a_name_has_no_scope_and_all_spellings_of_a_path_have_one() {
        let id = |raw: &str| InstanceId::from(parse(raw).unwrap());
        assert_eq!(id("podvm-web-1a2b3c4d").scope(), None);
        assert_eq!(id("podvm-web-1a2b3c4d").key(), "podvm-web-1a2b3c4d");
        for prefix in ["", PREFIXES[0], PREFIXES[1], PREFIXES[2]] {
            let id = id(&format!("{prefix}{PATH}"));
            assert_eq!((id.as_str(), id.scope()), (PATH, Some("projects/peer-pods/zones/europe-west4-a")));
            assert_eq!(id.key(), "podvm-web-1a2b3c4d", "the name alone may be the same VM");
        }
        assert!(parse("projects/example.com:peer-pods/zones/z-a/instances/a").is_ok());
    }

    #[test]
    fn malformed_identifiers_are_refused() {
        for raw in [
            "Podvm-Web",
            "podvm-web-",
            "a b",
            "a\" OR name:*",
            "a/../b",
            "zones/z/instances/a",
            "projects/p/zones/z/instances/a/",
            "projects/123456/zones/z/instances/a",
            "projects/p/zones/z/instances/a?x=y",
            "projects/p/zones/../instances/a",
            "projects/p/regions/r/instances/a",
            "https://compute.example.com/compute/v1/projects/p/zones/z/instances/a",
            &"a".repeat(64),
        ] {
            assert!(parse(raw).is_err(), "{raw}");
        }
        let problem = parse("4000000000000000001").unwrap_err().to_string();
        assert!(problem.contains("number"), "{problem}");
    }
}
