//! A provider's settings as users fill them in.

use std::fmt::Write as _;

use peerpod_operator::{
    provider::{Cloud, cloud::AdaptorSecret},
    settings::{Common, Key, Kind},
};

/// How wide a comment may be.
const WIDTH: usize = 100;

/// The object that contains a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The `ConfigMap`.
    ConfigMap,
    /// The Secret.
    Secret,
}

/// The settings of a provider in this object. Its own come first, because users must fill those in.
pub(super) fn keys(provider: &Cloud, place: Place) -> impl Iterator<Item = &'static Key> {
    let all = provider.keys().iter().chain(Common::KEYS.iter().filter(|key| key.name != "CLOUD_PROVIDER"));
    all.filter(move |key| (key.kind == Kind::Secret) == (place == Place::Secret))
}

/// The initial value of a setting: its default, or empty if it has none or the user must set it.
pub(super) fn value(key: &Key) -> &'static str {
    if key.required { "" } else { key.default }
}

/// Documentation of a setting, as lines of a comment.
pub(super) fn comment(key: &Key) -> String {
    let mut text = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
    if key.required {
        text.push_str(" Required.");
    }
    let mut comment = wrap(&text);
    if !key.default.is_empty() {
        // Settings that only cloud-api-adaptor requires do not stop deletions.
        let default = if key.required {
            "Without it cloud-api-adaptor does not start, and the operator assumes"
        } else {
            "Default"
        };
        comment.push_str(&wrap(&format!("{default}: {}", key.default)));
    }
    comment
}

/// Notes to read before an installation for this provider. Begins with a space, or is empty.
pub(super) fn caveat(provider: &Cloud) -> String {
    provider.caveat.into_iter().flat_map(|caveat| [" ", caveat]).collect()
}

/// Text as lines of a comment, each ending in a line break.
pub(super) fn wrap(text: &str) -> String {
    let mut comment = String::new();
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + word.len() >= WIDTH {
            comment.push_str(&line);
            comment.push('\n');
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    comment.push_str(&line);
    comment.push('\n');
    comment
}

/// A provider's settings in this object as a file of lines `KEY=value`.
pub(super) fn env_file(provider: &Cloud, place: Place) -> String {
    let mut text = wrap(match place {
        Place::ConfigMap => {
            "The ConfigMap peer-pods-cm: the settings of cloud-api-adaptor and of the operator. An empty \
             value means the default. If the Secret has the same setting, the value here is used, even if \
             it is empty."
        }
        Place::Secret => {
            "The Secret peer-pods-secret: the credentials of cloud-api-adaptor and of the operator. It \
             must exist, even if it is empty. An empty value means none. A value must be on one line."
        }
    });
    if place == Place::Secret && provider.mounts(AdaptorSecret::SshKey) {
        // Where cloud-api-adaptor has a setting for the public key, it does not start without that file.
        let public = provider.keys().iter().any(|key| key.name.contains("PUB_KEY"));
        let public = if public { " --from-file=id_rsa.pub" } else { "" };
        text.push_str(&wrap(&format!(
            "The ssh key is in another Secret: kubectl -n confidential-containers-system create secret \
             generic ssh-key-secret --from-file=id_rsa{public}"
        )));
    }
    if place == Place::ConfigMap {
        let _ = write!(text, "\n# The provider.\nCLOUD_PROVIDER={provider}\n");
    } else if keys(provider, place).next().is_none() {
        // The API server drops the empty map that kubectl sends, so every apply would write an empty Secret again.
        let _ =
            write!(text, "\n# The provider, which needs no credentials here.\nCLOUD_PROVIDER={provider}\n");
    }
    for key in keys(provider, place) {
        let _ = write!(text, "\n{}{}={}\n", comment(key), key.name, value(key));
    }
    text
}

#[cfg(test)]
mod tests {
    use peerpod_operator::provider::CLOUDS;

    use super::*;

    fn named(name: &str) -> &'static Cloud {
        Cloud::named(name).unwrap()
    }

    #[test]
    fn every_setting_is_in_one_of_the_two_files_with_its_documentation_above() {
        for provider in CLOUDS {
            let files = [Place::ConfigMap, Place::Secret].map(|place| env_file(provider, place));
            for key in keys(provider, Place::ConfigMap).chain(keys(provider, Place::Secret)) {
                let found: Vec<_> =
                    files.iter().filter_map(|file| file.split_once(&format!("\n{}=", key.name))).collect();
                let [(before, _)] = found[..] else { panic!("{} is in {} files", key.name, found.len()) };
                let above = before.rsplit("\n\n").next().unwrap().replace("\n# ", " ");
                let doc = key.doc.split_whitespace().next().unwrap();
                assert!(above.contains(doc), "{}: {above}", key.name);
            }
        }
    }

    #[test]
    fn required_settings_are_empty_and_others_have_their_default() {
        let file = env_file(named("aws"), Place::ConfigMap);
        for line in
            ["CLOUD_PROVIDER=aws", "PODVM_AMI_ID=", "PODVM_INSTANCE_TYPE=m6a.large", "VXLAN_PORT=4789"]
        {
            assert!(file.lines().any(|it| it == line), "{line}: {file}");
        }
        assert!(!file.contains("AWS_SECRET_ACCESS_KEY="));
        assert!(env_file(named("aws"), Place::Secret).contains("\nAWS_SECRET_ACCESS_KEY=\n"));
    }

    #[test]
    fn a_required_setting_is_documented_without_a_default() {
        let about = |name: &str| {
            let key = keys(named("libvirt"), Place::ConfigMap).find(|key| key.name == name).unwrap();
            comment(key)
        };
        let uri = about("LIBVIRT_URI");
        assert!(uri.contains("cloud-api-adaptor does not start"), "{uri}");
        assert!(!uri.contains("Default"), "{uri}");
        assert!(about("LIBVIRT_POOL").ends_with("# Default: default\n"));
    }

    #[test]
    fn comments_are_broken_between_words() {
        let comment = wrap(&"word ".repeat(50));
        assert!(comment.lines().all(|line| line.starts_with("# word") && line.len() <= WIDTH), "{comment}");
        assert_eq!(comment.matches("word").count(), 50);
    }
}
