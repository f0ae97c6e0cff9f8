//! The settings of all clouds, as data that the caller gives.

use super::{Common, Endpoint, Key, Malformed, SettingsError, Values};

/// How many letters may be missing, added, wrong or swapped in a name that is still recognised.
const TYPING_ERRORS: usize = 2;

/// The settings of one cloud.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The cloud's name, as in `CLOUD_PROVIDER`.
    pub cloud: &'static str,
    /// Every setting beside those that all clouds have ([`Common::KEYS`]), in the order in which people fill them in.
    pub keys: &'static [Key],
    /// Judges the settings that deletion needs.
    pub check: Check,
}

/// Where the cloud's VMs are by these values, or all that deletion cannot use.
pub type Check = fn(&Values) -> Result<Endpoint, Vec<Malformed>>;

/// The clouds that a pair of folders can be for.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue(&'static [&'static Schema]);

impl Schema {
    /// Whether `name` is a setting of this cloud, shared with others or not.
    fn has_key(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name == name)
    }
}

impl Catalogue {
    /// These clouds.
    pub const fn new(schemas: &'static [&'static Schema]) -> Self {
        Self(schemas)
    }

    /// The names of all clouds.
    pub(super) fn names(self) -> Vec<&'static str> {
        self.0.iter().map(|schema| schema.cloud).collect()
    }

    /// The cloud of this name.
    pub(super) fn named(self, name: &str) -> Result<&'static Schema, SettingsError> {
        let found = self.0.iter().copied().find(|schema| schema.cloud == name);
        found.ok_or_else(|| SettingsError::UnknownProvider {
            name: name.chars().take(64).collect(),
            known: self.names(),
        })
    }

    /// Whether cloud-api-adaptor reads a setting of this name with any provider.
    pub(super) fn is_known(self, name: &str) -> bool {
        let mut common = Common::KEYS.iter().chain(Common::VARIABLES);
        common.any(|key| key.name == name) || self.0.iter().any(|schema| schema.has_key(name))
    }

    /// The one cloud that reads `name`; `None` if several clouds do or none does.
    pub(super) fn only_reader(self, name: &str) -> Option<&'static Schema> {
        let mut readers = self.0.iter().copied().filter(|schema| schema.has_key(name));
        readers.next().filter(|_| readers.next().is_none())
    }

    /// The setting that the author of `name` probably meant: one that differs in case, or in a letter or two except the first.
    pub(super) fn nearest(self, name: &str) -> Option<&'static str> {
        let name = name.to_ascii_uppercase();
        let of_clouds = self.0.iter().flat_map(|schema| schema.keys);
        let keys = Common::KEYS.iter().chain(Common::VARIABLES).chain(of_clouds).map(|key| key.name);
        // Measuring is slow, and a folder may have many names. Users rarely mistype the first letter.
        let near = keys.filter(|known| {
            known.len().abs_diff(name.len()) <= TYPING_ERRORS
                && known.as_bytes().first() == name.as_bytes().first()
        });
        let measured = near.map(|known| (strsim::osa_distance(&name, known), known));
        // Half of a short name is no typing error.
        let meant =
            measured.filter(|(distance, known)| *distance <= TYPING_ERRORS && distance * 4 <= known.len());
        meant.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
    }
}

#[cfg(test)]
mod tests {
    use crate::provider::CATALOGUE;

    #[test]
    fn a_shared_setting_gives_no_hint_of_the_provider() {
        let only_reader = |name| CATALOGUE.only_reader(name).map(|schema| schema.cloud);
        assert_eq!(only_reader("LIBVIRT_URI"), Some("libvirt"));
        assert_eq!(only_reader("POWERVS_ZONE"), Some("ibmcloud-powervs"));
        for shared in ["IBMCLOUD_API_KEY", "DISABLECVM", "TAGS", "USE_PUBLIC_IP", "SSH_USERNAME"] {
            assert_eq!(only_reader(shared), None, "{shared}");
            assert!(CATALOGUE.is_known(shared), "{shared}");
        }
        for unread in ["VXLAN_PORT", "CLOUD_PROVIDER", "LIBVIRT_POOOL", ""] {
            assert_eq!(only_reader(unread), None, "{unread}");
        }
        assert!(CATALOGUE.is_known("VXLAN_PORT"));
        assert!(!CATALOGUE.is_known("LIBVIRT_POOOL"));
    }

    #[test]
    fn variables_of_the_adaptors_libraries_are_known_and_imply_no_cloud() {
        for name in ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE"] {
            assert!(CATALOGUE.is_known(name), "{name}");
            assert_eq!(CATALOGUE.only_reader(name).map(|schema| schema.cloud), None, "{name}");
        }
    }

    #[test]
    fn a_typing_error_is_recognised_and_anything_else_is_not() {
        for (written, meant) in [
            ("LIBVIRT_POOOL", "LIBVIRT_POOL"),
            ("libvirt_uri", "LIBVIRT_URI"),
            ("LIBVRIT_URI", "LIBVIRT_URI"),
            ("AWS_ACCES_KEY_ID", "AWS_ACCESS_KEY_ID"),
            ("TAG", "TAGS"),
        ] {
            assert_eq!(CATALOGUE.nearest(written), Some(meant), "{written}");
        }
        for other in ["", "X", "URI", "DATABASE_PASSWORD", &"A".repeat(10_000)] {
            assert_eq!(CATALOGUE.nearest(other), None, "{other}");
        }
    }
}
