//! Settings as a Pod sees them.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use peerpod_operator::{
    NAMESPACE,
    provider::{CATALOGUE, Error, ErrorClass, Openers, Opening, Provider, cloud::RecordedPlace},
    settings::{Raw, Snapshot},
};
use peers::{
    alibaba::{self, Alibaba},
    azure::{CLIENT, GROUP, SECRET, SUBSCRIPTION, TENANT},
    ibm::Ibm,
    vsphere::{DATACENTER, FOLDER, PASSWORD, USER, Vsphere},
};

/// The content of `peer-pods-cm` and `peer-pods-secret`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The `ConfigMap`'s data.
    pub config_map: BTreeMap<String, String>,
    /// The `Secret`'s data.
    pub secret: BTreeMap<String, String>,
}

impl Settings {
    /// Settings for a [`ComputeEngine`](peers::gcp::ComputeEngine), or a relay before it. Without `credentials`, which are a JSON
    /// document, the environment's credentials are used.
    pub fn gcp(address: SocketAddr, credentials: Option<String>) -> Self {
        let base = format!("http://{address}/compute/v1/");
        let config_map = [
            ("CLOUD_PROVIDER", "gcp"),
            ("GCP_PROJECT_ID", peers::gcp::PROJECT),
            ("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", &base),
        ];
        Self {
            config_map: pairs(config_map),
            secret: credentials
                .map(|document| ("GCP_CREDENTIALS".to_owned(), document))
                .into_iter()
                .collect(),
        }
    }

    /// Settings for a [`Moto`](peers::aws::Moto), or a relay before it. Without identifier and secret of an access key, the
    /// environment's credentials are used.
    pub fn aws(address: SocketAddr, key: Option<(String, String)>) -> Self {
        let endpoint = format!("http://{address}");
        let config_map =
            [("CLOUD_PROVIDER", "aws"), ("AWS_REGION", peers::aws::REGION), ("AWS_ENDPOINT_URL", &endpoint)];
        let secret = key.into_iter().flat_map(|(id, secret)| {
            [("AWS_ACCESS_KEY_ID".to_owned(), id), ("AWS_SECRET_ACCESS_KEY".to_owned(), secret)]
        });
        Self { config_map: pairs(config_map), secret: secret.collect() }
    }

    /// Settings for an [`Azure`](peers::azure::Azure) at this URL, with the secret of its application.
    pub fn azure(url: &str) -> Self {
        let config_map = [
            ("CLOUD_PROVIDER", "azure"),
            ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
            ("AZURE_RESOURCE_GROUP", GROUP),
            ("AZURE_AUTHORITY_HOST", url),
            ("AZURE_RESOURCE_MANAGER_ENDPOINT", url),
        ];
        let secret =
            [("AZURE_TENANT_ID", TENANT), ("AZURE_CLIENT_ID", CLIENT), ("AZURE_CLIENT_SECRET", SECRET)];
        Self { config_map: pairs(config_map), secret: pairs(secret) }
    }

    /// Settings for a region of an [`Ibm`](peers::ibm::Ibm), with the API key of the operator.
    pub fn ibmcloud(cloud: &Ibm, region: &str) -> Self {
        let (vpc, iam, search) = (cloud.vpc(region), cloud.iam(), cloud.url());
        let config_map = [
            ("CLOUD_PROVIDER", "ibmcloud"),
            ("IBMCLOUD_VPC_ENDPOINT", &*vpc),
            ("IBMCLOUD_IAM_ENDPOINT", &*iam),
            ("IBMCLOUD_GLOBAL_SEARCH_ENDPOINT", &*search),
        ];
        Self { config_map: pairs(config_map), secret: pairs([("IBMCLOUD_API_KEY", peers::ibm::KEY)]) }
    }

    /// The same without an endpoint: the region is that of the nodes.
    pub fn ibmcloud_of_nodes(cloud: &Ibm) -> Self {
        let mut settings = Self::ibmcloud(cloud, "");
        settings.config_map.remove("IBMCLOUD_VPC_ENDPOINT");
        settings
    }

    /// Settings for a workspace of an [`Ibm`](peers::ibm::Ibm), with the API key of the operator.
    pub fn powervs(cloud: &Ibm, workspace: &str) -> Self {
        let (api, iam) = (cloud.url(), cloud.iam());
        let config_map = [
            ("CLOUD_PROVIDER", "ibmcloud-powervs"),
            ("POWERVS_ZONE", peers::ibm::ZONE),
            ("POWERVS_SERVICE_INSTANCE_ID", workspace),
            ("IBMCLOUD_POWER_API_ENDPOINT", &*api),
            ("IBMCLOUD_IAM_ENDPOINT", &*iam),
        ];
        Self { config_map: pairs(config_map), secret: pairs([("IBMCLOUD_API_KEY", peers::ibm::KEY)]) }
    }

    /// Settings for a region of an [`Alibaba`], with the access key of the operator.
    pub fn alibabacloud(cloud: &Alibaba, region: &str) -> Self {
        let endpoint = cloud.endpoint(region);
        let config_map =
            [("CLOUD_PROVIDER", "alibabacloud"), ("REGION", region), ("ALIBABA_CLOUD_ENDPOINT", &*endpoint)];
        let secret = [
            ("ALIBABACLOUD_ACCESS_KEY_ID", alibaba::KEY),
            ("ALIBABACLOUD_ACCESS_KEY_SECRET", alibaba::SECRET),
        ];
        Self { config_map: pairs(config_map), secret: pairs(secret) }
    }

    /// Settings for machines that accept this key for root. The operator leaves them to cloud-api-adaptor for a moment alone.
    pub fn byom(key: &Path) -> Self {
        let key = key.display().to_string();
        let config_map = [
            ("CLOUD_PROVIDER", "byom"),
            ("SSH_USERNAME", "root"),
            ("SSH_PRIV_KEY_PATH", &key),
            ("PROXY_TIMEOUT", "1s"),
        ];
        Self { config_map: pairs(config_map), secret: BTreeMap::new() }
    }

    /// Settings for the Docker daemon at this address.
    pub fn docker(address: SocketAddr) -> Self {
        let host = format!("tcp://{address}");
        let config_map = [("CLOUD_PROVIDER", "docker"), ("DOCKER_HOST", &host)];
        Self { config_map: pairs(config_map), secret: BTreeMap::new() }
    }

    /// Settings for a [`Vsphere`], with the user of the operator.
    pub fn vsphere(vcenter: &Vsphere) -> Self {
        let url = format!("http://{}", vcenter.relay().address());
        let config_map = [
            ("CLOUD_PROVIDER", "vsphere"),
            ("GOVC_URL", &*url),
            ("GOVC_DATACENTER", DATACENTER),
            ("GOVC_FOLDER", FOLDER),
        ];
        let secret = [("GOVC_USERNAME", USER), ("GOVC_PASSWORD", PASSWORD)];
        Self { config_map: pairs(config_map), secret: pairs(secret) }
    }

    /// A provider for these settings, opened as the operator would.
    pub fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.open_at(None)
    }

    /// A provider for these settings at a recorded place.
    pub fn open_at(&self, recorded: Option<RecordedPlace<'_>>) -> Result<Box<dyn Provider>, Error> {
        self.open_by(&Openers::default(), recorded)
    }

    /// A provider for these settings, opened by an operator with this client.
    pub fn open_in(
        &self,
        client: Client,
        recorded: Option<RecordedPlace<'_>>,
    ) -> Result<Box<dyn Provider>, Error> {
        self.open_by(&Openers::default().in_cluster(client, NAMESPACE), recorded)
    }

    /// A provider for these settings, opened by these openers.
    pub fn open_by(
        &self,
        openers: &Openers,
        recorded: Option<RecordedPlace<'_>>,
    ) -> Result<Box<dyn Provider>, Error> {
        let secrets = |data: &BTreeMap<String, String>| {
            data.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect()
        };
        let raw =
            Raw { settings: secrets(&self.config_map), credentials: secrets(&self.secret), ..Raw::default() };
        let snapshot = Snapshot::parse(&raw, CATALOGUE)
            .map_err(|problem| Error::new(ErrorClass::Invalid, problem.message()))?;
        openers.open(&snapshot, Opening { recorded, ..Opening::new(32) })
    }

    /// Settings for the libvirt daemon at this URI.
    pub fn libvirt(uri: &str) -> Self {
        let config_map = [("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_URI", uri), ("LIBVIRT_POOL", "default")];
        Self { config_map: pairs(config_map), secret: BTreeMap::new() }
    }
}

/// The data of a `ConfigMap` or `Secret`.
fn pairs<const N: usize>(data: [(&str, &str); N]) -> BTreeMap<String, String> {
    data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A `ConfigMap` or `Secret` mounted as a kubelet does it: `KEY -> ..data/KEY`, `..data -> ..VERSION`. A new version replaces the old
/// one by one rename.
#[derive(Debug)]
pub struct MountedFolder {
    path: PathBuf,
    versions: u32,
}

impl MountedFolder {
    /// Makes the folder with this content. An existing folder must have no content yet.
    pub fn create(path: impl Into<PathBuf>, data: &BTreeMap<String, String>) -> Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        ensure!(!path.join("..data").is_symlink(), "something is mounted at {}", path.display());
        let mut folder = Self { path, versions: 0 };
        folder.replace(data)?;
        Ok(folder)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the whole content at once.
    pub fn replace(&mut self, data: &BTreeMap<String, String>) -> Result<()> {
        self.swap(data).with_context(|| format!("writing {}", self.path.display()))
    }

    fn swap(&mut self, data: &BTreeMap<String, String>) -> io::Result<()> {
        let link = self.path.join("..data");
        let old = fs::read_link(&link).ok();
        self.versions += 1;
        let version = format!("..{}", self.versions);
        fs::create_dir(self.path.join(&version))?;
        for (key, value) in data {
            fs::write(self.path.join(&version).join(key), value)?;
        }
        let new_link = self.path.join("..data_tmp");
        symlink(&version, &new_link)?;
        fs::rename(&new_link, &link)?;
        for key in data.keys().filter(|key| !self.path.join(key).is_symlink()) {
            symlink(Path::new("..data").join(key), self.path.join(key))?;
        }
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with("..") && !data.contains_key(&name) {
                fs::remove_file(self.path.join(name))?;
            }
        }
        old.map_or(Ok(()), |old| fs::remove_dir_all(self.path.join(old)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(folder: &Path) -> BTreeMap<String, String> {
        let names =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let keys = names.filter(|name| !name.starts_with(".."));
        keys.map(|key| (key.clone(), fs::read_to_string(folder.join(key)).unwrap())).collect()
    }

    #[test]
    fn a_new_version_replaces_the_old_one_with_all_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        let data = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let first = data(&[("A", "1"), ("B", "1")]);
        let second = data(&[("B", "2"), ("C", "2")]);
        let mut folder = MountedFolder::create(dir.path().join("settings"), &first).unwrap();
        assert_eq!(read(folder.path()), first);
        folder.replace(&second).unwrap();
        assert_eq!(read(folder.path()), second);
        let versions =
            fs::read_dir(folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
        assert_eq!(versions.count(), 2, "..data and what it points at");
    }
}
