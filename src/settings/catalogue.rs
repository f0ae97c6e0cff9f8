//! The providers that cloud-api-adaptor knows, and the names of their settings.

use std::fmt;
use std::str::FromStr;

use super::{Common, Libvirt, SettingsError};

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

    /// Whether `name` is a setting of this provider, shared with others or not.
    pub(super) fn has_key(self, name: &str) -> bool {
        match self {
            Self::Libvirt => Libvirt::KEYS.iter().any(|key| key.name == name),
            other => other.names().split_ascii_whitespace().any(|known| known == name),
        }
    }

    /// The names alone, for the providers whose settings have no type yet: enough to tell a known setting from a typing
    /// error, and one provider's folder from another's.
    fn names(self) -> &'static str {
        match self {
            Self::Libvirt => "",
            Self::Aws => {
                "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_ROLE_ARN AWS_WEB_IDENTITY_TOKEN_FILE
                 AWS_REGION AWS_SUBNET_ID AWS_SG_IDS AWS_ENDPOINT_URL SSH_KP_NAME PODVM_AMI_ID PODVM_INSTANCE_TYPE
                 PODVM_INSTANCE_TYPES USE_PODVM_LAUNCHTEMPLATE PODVM_LAUNCHTEMPLATE_NAME USE_PUBLIC_IP
                 ROOT_VOLUME_SIZE DISABLECVM TAGS"
            }
            Self::Azure => {
                "AZURE_CLIENT_ID AZURE_CLIENT_SECRET AZURE_TENANT_ID AZURE_SUBSCRIPTION_ID AZURE_RESOURCE_GROUP
                 AZURE_SUBNET_ID AZURE_IMAGE_ID AZURE_REGION AZURE_INSTANCE_SIZE AZURE_INSTANCE_SIZES AZURE_NSG_ID
                 AZURE_AUTHORITY_HOST SSH_USERNAME ENABLE_SECURE_BOOT USE_PUBLIC_IP ROOT_VOLUME_SIZE DISABLECVM TAGS"
            }
            Self::Gcp => {
                "GCP_CREDENTIALS GCP_PROJECT_ID GCP_ZONE GCP_NETWORK GCP_SUBNETWORK GCP_MACHINE_TYPE
                 GCP_INSTANCE_TYPES GCP_DISK_TYPE GCP_CONFIDENTIAL_TYPE PODVM_IMAGE_NAME USE_PUBLIC_IP
                 ROOT_VOLUME_SIZE DISABLECVM TAGS"
            }
            Self::Ibmcloud => {
                "IBMCLOUD_API_KEY IBMCLOUD_IAM_PROFILE_ID IBMCLOUD_IAM_ENDPOINT IBMCLOUD_VPC_ENDPOINT IBMCLOUD_ZONE
                 IBMCLOUD_CLUSTER_ID IBMCLOUD_RESOURCE_GROUP_ID IBMCLOUD_VPC_ID IBMCLOUD_VPC_SUBNET_ID
                 IBMCLOUD_SSH_KEY_ID IBMCLOUD_SECURITY_GROUP_IDS IBMCLOUD_DEDICATED_HOST_IDS
                 IBMCLOUD_DEDICATED_HOST_GROUP_IDS IBMCLOUD_PODVM_IMAGE_ID IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME
                 IBMCLOUD_PODVM_INSTANCE_PROFILE_LIST DISABLECVM TAGS"
            }
            Self::IbmcloudPowervs => {
                "IBMCLOUD_API_KEY POWERVS_ZONE POWERVS_SERVICE_INSTANCE_ID POWERVS_NETWORK_ID POWERVS_IMAGE_ID
                 POWERVS_SSH_KEY_NAME POWERVS_PROCESSOR_TYPE POWERVS_SYSTEM_TYPE POWERVS_MEMORY POWERVS_PROCESSORS
                 POWERVS_BUILD_TIMEOUT USE_PUBLIC_IP"
            }
            Self::Alibabacloud => {
                "ALIBABACLOUD_ACCESS_KEY_ID ALIBABACLOUD_ACCESS_KEY_SECRET ALIBABACLOUD_SECURITY_TOKEN
                 ALIBABA_CLOUD_ROLE_ARN ALIBABA_CLOUD_OIDC_PROVIDER_ARN ALIBABA_CLOUD_OIDC_TOKEN_FILE VSWITCH_ID
                 IMAGEID SECURITY_GROUP_IDS REGION INSTANCE_TYPE PODVM_INSTANCE_TYPE KEYNAME SYSTEM_DISK_SIZE
                 USE_PUBLIC_IP DISABLECVM TAGS"
            }
            Self::Byom => {
                "VM_POOL_IPS MAX_RANGE_IPS SSH_USERNAME SSH_PUB_KEY_PATH SSH_PRIV_KEY_PATH SSH_TIMEOUT
                 SSH_HOST_KEY_ALLOWLIST_DIR POOL_NAMESPACE POOL_CONFIGMAP_NAME"
            }
            Self::Docker => {
                "DOCKER_HOST DOCKER_API_VERSION DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_PODVM_IMAGE
                 DOCKER_NETWORK_NAME"
            }
            Self::Vsphere => {
                "GOVC_URL GOVC_DATACENTER GOVC_USERNAME GOVC_PASSWORD GOVC_THUMBPRINT GOVC_TEMPLATE GOVC_DRS
                 GOVC_VCLUSTER GOVC_HOST GOVC_DATASTORE GOVC_FOLDER"
            }
        }
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
    let keys = Common::KEYS.iter().chain(Libvirt::KEYS).map(|key| key.name);
    let others =
        CloudProvider::ALL.into_iter().flat_map(|provider| provider.names().split_ascii_whitespace());
    // Measuring is slow, and a folder may have many names: hardly anybody mistypes the first letter.
    let near = keys.chain(others).filter(|known| {
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
    use super::*;

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
