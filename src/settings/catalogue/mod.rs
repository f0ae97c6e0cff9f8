//! The providers that cloud-api-adaptor knows, and their settings.
//!
//! What is printed of settings (packages, documents) is printed from here. A provider that this operator speaks to has its
//! settings as a type ([`Libvirt`]); the others have a table, a file for each cloud.

mod alibabacloud;
mod aws;
mod azure;
mod byom;
mod docker;
mod gcp;
mod ibmcloud;
mod shared;
mod vsphere;

use std::fmt;
use std::str::FromStr;

use super::{Common, Key, Libvirt, SettingsError};

/// How many letters may be missing, added, wrong or swapped in a name that is still recognised.
const TYPING_ERRORS: usize = 2;

/// A provider of cloud-api-adaptor, whether this version speaks to it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the providers' own names")]
pub enum CloudProvider {
    Libvirt,
    Aws,
    Azure,
    Gcp,
    Ibmcloud,
    IbmcloudPowervs,
    Alibabacloud,
    Byom,
    Docker,
    Vsphere,
}

impl CloudProvider {
    /// Every provider.
    pub const ALL: [Self; 10] = [
        Self::Libvirt,
        Self::Aws,
        Self::Azure,
        Self::Gcp,
        Self::Ibmcloud,
        Self::IbmcloudPowervs,
        Self::Alibabacloud,
        Self::Byom,
        Self::Docker,
        Self::Vsphere,
    ];

    /// The name as in `CLOUD_PROVIDER` and in `spec.cloudProvider` of a `PeerPod`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::Gcp => "gcp",
            Self::Ibmcloud => "ibmcloud",
            Self::IbmcloudPowervs => "ibmcloud-powervs",
            Self::Alibabacloud => "alibabacloud",
            Self::Byom => "byom",
            Self::Docker => "docker",
            Self::Vsphere => "vsphere",
        }
    }

    /// Whether this version of the operator deletes this provider's VMs. It knows the settings of all.
    pub const fn is_reaped(self) -> bool {
        matches!(self, Self::Libvirt)
    }

    /// Every setting of this provider beside those that all have ([`Common::KEYS`]), in the order in which people fill
    /// them in.
    pub const fn keys(self) -> &'static [Key] {
        match self {
            Self::Libvirt => Libvirt::KEYS,
            Self::Aws => aws::KEYS,
            Self::Azure => azure::KEYS,
            Self::Gcp => gcp::KEYS,
            Self::Ibmcloud => ibmcloud::VPC_KEYS,
            Self::IbmcloudPowervs => ibmcloud::POWERVS_KEYS,
            Self::Alibabacloud => alibabacloud::KEYS,
            Self::Byom => byom::KEYS,
            Self::Docker => docker::KEYS,
            Self::Vsphere => vsphere::KEYS,
        }
    }

    /// Whether `name` is a setting of this provider, shared with others or not.
    fn has_key(self, name: &str) -> bool {
        self.keys().iter().any(|key| key.name == name)
    }
}

impl fmt::Display for CloudProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CloudProvider {
    type Err = SettingsError;

    fn from_str(name: &str) -> Result<Self, SettingsError> {
        Self::ALL
            .into_iter()
            .find(|provider| provider.as_str() == name)
            .ok_or_else(|| SettingsError::UnknownProvider { name: name.chars().take(64).collect() })
    }
}

/// Whether cloud-api-adaptor reads a setting of this name with any provider.
pub(super) fn is_known(name: &str) -> bool {
    Common::KEYS.iter().any(|key| key.name == name)
        || CloudProvider::ALL.into_iter().any(|provider| provider.has_key(name))
}

/// The one provider that reads `name`; none where several do or none does.
pub(super) fn only_reader(name: &str) -> Option<CloudProvider> {
    let mut readers = CloudProvider::ALL.into_iter().filter(|provider| provider.has_key(name));
    readers.next().filter(|_| readers.next().is_none())
}

/// The setting that whoever wrote `name` probably meant: one that differs in case, or in a letter or two but the first.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let of_providers = CloudProvider::ALL.into_iter().flat_map(CloudProvider::keys);
    let keys = Common::KEYS.iter().chain(of_providers).map(|key| key.name);
    // Measuring is slow, and a folder may have many names: hardly anybody mistypes the first letter.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::settings::Kind;

    #[test]
    fn names_read_back_and_are_spelled_exactly() {
        for provider in CloudProvider::ALL {
            assert_eq!(provider.as_str().parse(), Ok(provider));
        }
        for wrong in ["", "Libvirt", "libvirt ", "ibmcloud_powervs", "openstack"] {
            assert_eq!(
                wrong.parse::<CloudProvider>(),
                Err(SettingsError::UnknownProvider { name: wrong.to_owned() })
            );
        }
    }

    #[test]
    fn every_setting_is_described_once_for_each_provider() {
        for provider in CloudProvider::ALL {
            let keys: Vec<_> = Common::KEYS.iter().chain(provider.keys()).collect();
            let names: BTreeSet<_> = keys.iter().map(|key| key.name).collect();
            assert_eq!(names.len(), keys.len(), "{provider} has a setting twice");
            for Key { name, doc, kind, default, .. } in keys {
                assert!(
                    name.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_'),
                    "{name}"
                );
                assert!(doc.ends_with('.') && !doc.contains("  "), "{name}: {doc}");
                assert!(*kind != Kind::Secret || default.is_empty(), "{name} is a secret with a default");
                let is_switch = ["true", "false"].contains(default);
                assert_eq!(*kind == Kind::Boolean, is_switch, "{name} is a switch if its default is one");
            }
        }
    }

    #[test]
    fn credentials_are_secret_and_nothing_else_is() {
        let all = CloudProvider::ALL.into_iter().flat_map(CloudProvider::keys).chain(Common::KEYS);
        for Key { name, kind, .. } in all {
            let telling =
                ["PASSWORD", "SECRET", "TOKEN", "CREDENTIALS", "API_KEY", "ACCESS_KEY", "CLIENT_ID"];
            let credential = telling.iter().any(|it| name.contains(it)) && !name.ends_with("_FILE");
            assert!(!credential || *kind == Kind::Secret, "{name} belongs into the Secret");
        }
    }

    #[test]
    fn a_shared_setting_gives_no_hint_of_the_provider() {
        assert_eq!(only_reader("LIBVIRT_URI"), Some(CloudProvider::Libvirt));
        assert_eq!(only_reader("POWERVS_ZONE"), Some(CloudProvider::IbmcloudPowervs));
        for shared in ["IBMCLOUD_API_KEY", "DISABLECVM", "TAGS", "USE_PUBLIC_IP", "SSH_USERNAME"] {
            assert_eq!(only_reader(shared), None, "{shared}");
            assert!(is_known(shared), "{shared}");
        }
        for unread in ["VXLAN_PORT", "CLOUD_PROVIDER", "LIBVIRT_POOOL", ""] {
            assert_eq!(only_reader(unread), None, "{unread}");
        }
        assert!(is_known("VXLAN_PORT"));
        assert!(!is_known("LIBVIRT_POOOL"));
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
            assert_eq!(nearest(written), Some(meant), "{written}");
        }
        for other in ["", "X", "URI", "DATABASE_PASSWORD", &"A".repeat(10_000)] {
            assert_eq!(nearest(other), None, "{other}");
        }
    }
}
