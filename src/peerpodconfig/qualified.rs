//! Names by Kubernetes' rule for qualified ones: of labels, annotations and extended resources. Pure *(no client)*.

/// The longest domain, in bytes.
pub(super) const LONGEST_DOMAIN: usize = 253;
/// The longest name after it.
pub(super) const LONGEST_NAME: usize = 63;

/// Whether the API server takes this as the key of a label: a name, perhaps after a domain.
pub(super) fn is_label(key: &str) -> bool {
    match key.split_once('/') {
        Some((domain, name)) => is_domain(domain) && is_name(name),
        None => is_name(key),
    }
}

/// Whether the API server takes this as the key of an annotation: as of a label, but case does not matter.
pub(super) fn is_annotation(key: &str) -> bool {
    is_label(&key.to_ascii_lowercase())
}

pub(super) fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        is_framed(label, |byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && !label.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    text.len() <= LONGEST_DOMAIN && text.split('.').all(is_label)
}

pub(super) fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
        && is_framed(text, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_framed(text: &str, is_inner: fn(&u8) -> bool) -> bool {
    match text.as_bytes() {
        [only] => only.is_ascii_alphanumeric(),
        [first, inner @ .., last] => {
            first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && inner.iter().all(is_inner)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_annotations_are_those_that_the_api_server_takes() {
        let longest = format!("{}/{}", "d".repeat(LONGEST_DOMAIN), "n".repeat(LONGEST_NAME));
        for key in ["a", "role", "eks.amazonaws.com/role-arn", "Example.COM/Role_arn.1", &longest] {
            assert!(is_annotation(key), "{key}");
        }
        let long = [format!("d{longest}"), format!("{longest}n"), "n".repeat(LONGEST_NAME + 1)];
        let refused =
            ["", "/", "role arn", "a/", "/a", "a/b/c", "a..b/c", "-a", "a-", "a_b/c", "rôle", "a/b ", ".a"];
        for key in refused.into_iter().chain(long.iter().map(String::as_str)) {
            assert!(!is_annotation(key), "{key}");
        }
    }
}
