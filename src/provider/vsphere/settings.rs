//! The settings of vSphere, and where they point.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    provider::http::{Fingerprint, identity::is_safe},
    settings::{Endpoint, Malformed, Values, key::settings},
};

/// The settings that say where VMs are.
const URL: &str = "GOVC_URL";
const DATACENTER: &str = "GOVC_DATACENTER";
const FOLDER: &str = "GOVC_FOLDER";

settings! {
    /// Where pod VMs of vSphere are made, of what, and where they are found again.
    pub struct Settings {
        /// User of vCenter.
        user: Option<SecretString> = GOVC_USERNAME.required().concerns_deletion(),
        /// The user's password.
        password: Option<SecretString> = GOVC_PASSWORD.required().concerns_deletion(),
        /// Thumbprint of vCenter's certificate: SHA-1, in upper case and with colons. The operator alone also takes other spellings,
        /// and SHA-256. Without it the operator trusts known authorities, and cloud-api-adaptor any certificate.
        thumbprint: Option<SecretString> = GOVC_THUMBPRINT.concerns_deletion(),
        /// Address of vCenter, such as https://vcenter.example.com/sdk.
        url: String = GOVC_URL.required().concerns_deletion(),
        /// Data centre of the pod VMs.
        datacenter: String = GOVC_DATACENTER.required().concerns_deletion(),
        /// Template that pod VMs are cloned from.
        template: String = GOVC_TEMPLATE.default("podvm-template"),
        /// Whether the cluster decides which host runs a pod VM.
        drs: bool = GOVC_DRS.default("false"),
        /// Cluster of hosts that run pod VMs. Required if GOVC_DRS is true, or if the host is in a cluster.
        cluster: Option<String> = GOVC_VCLUSTER,
        /// Host that runs pod VMs. Required unless GOVC_DRS is true.
        host: Option<String> = GOVC_HOST,
        /// Datastore of the pod VMs. Required unless GOVC_DRS is true.
        datastore: Option<String> = GOVC_DATASTORE,
        /// Folder of the pod VMs, below the data centre's folder for VMs.
        folder: Option<String> = GOVC_FOLDER.concerns_deletion(),
    }
}

/// Where VMs are: a vCenter, and a folder of its inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The URL of its API, without a user.
    pub(super) url: String,
    /// The path of the folder in the inventory, such as `/datacenter/vm/peerpods`.
    pub(super) folder: String,
}

impl Place {
    fn of(settings: &Settings) -> Result<Self, Vec<Malformed>> {
        let mut malformed = Vec::new();
        let mut wrong = |key, problem: &str| malformed.push(Malformed::new(key, problem));
        let url = url(&settings.url);
        if url.is_none() {
            let problem = "it must be the address of vCenter, such as https://vcenter.example.com/sdk; http is for loopback \
                           addresses only";
            wrong(URL, problem);
        }
        let names = "it must be a name or a path in the inventory, without wildcards";
        let datacenter = path(&settings.datacenter).filter(|path| !path.is_empty());
        if datacenter.is_none() {
            wrong(DATACENTER, names);
        }
        let folder = path(settings.folder.as_deref().unwrap_or_default());
        if folder.is_none() {
            wrong(FOLDER, names);
        }
        match (url, datacenter, folder) {
            (Some(url), Some(datacenter), Some(folder)) => {
                Ok(Self { url, folder: format!("{datacenter}/vm{folder}") })
            }
            _ => Err(malformed),
        }
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    pub(super) fn recorded(address: &str) -> Option<Self> {
        let (recorded, folder) = address.split_once(' ')?;
        let place = Self { url: url(recorded)?, folder: path(folder).filter(|path| !path.is_empty())? };
        (place.to_string() == address).then_some(place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.url, self.folder)
    }
}

/// The URL that cloud-api-adaptor reads in `GOVC_URL`: without a scheme https counts, without a path `/sdk`, and a user never.
fn url(given: &str) -> Option<String> {
    let (scheme, rest) = given.split_once("://").unwrap_or(("https", given));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next()?;
    let path = path.trim_end_matches('/');
    let path = if path.is_empty() { "/sdk" } else { path };
    let is_path = path.bytes().all(|it| it.is_ascii_alphanumeric() || b"/-._~".contains(&it));
    let url = format!("{}://{}{path}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let is_port = |port: &str| port.ends_with(']') || port.parse::<u16>().is_ok();
    let is_host = host.rsplit_once(':').is_none_or(|(_, port)| is_port(port));
    (is_host && is_path && is_safe(&url)).then_some(url)
}

/// A path in the inventory, with a slash before each name; empty if it names nothing.
fn path(given: &str) -> Option<String> {
    let is_name = |name: &&str| *name != "." && *name != ".." && !name.contains(['*', '?', '[', '\\']);
    let mut names = given.split('/').filter(|name| !name.is_empty());
    names.try_fold(String::new(), |path, name| Some(format!("{path}/{}", is_name(&name).then_some(name)?)))
}

impl Settings {
    /// The certificate of vCenter, if these name one. `Err` if they name what cannot be one.
    pub(super) fn fingerprint(&self) -> Result<Option<Fingerprint>, ()> {
        let Some(thumbprint) = &self.thumbprint else { return Ok(None) };
        Fingerprint::parse(thumbprint.expose_secret()).map(Some).ok_or(())
    }
}

/// Where these settings look for VMs.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let place = Place::of(&settings);
    let mut malformed = place.as_ref().err().cloned().unwrap_or_default();
    let mut wrong = |key, problem: &str| malformed.push(Malformed::new(key, problem));
    for (key, value) in [("GOVC_USERNAME", &settings.user), ("GOVC_PASSWORD", &settings.password)] {
        if value.is_none() {
            wrong(key, "it is empty");
        }
    }
    if settings.fingerprint().is_err() {
        wrong("GOVC_THUMBPRINT", "it must be a SHA-1 or SHA-256 hash in hexadecimal digits");
    }
    match place {
        Ok(place) if malformed.is_empty() => Ok(Endpoint { setting: URL, address: place.to_string() }),
        _ => Err(malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::CATALOGUE,
        settings::{Raw, Snapshot},
    };

    const GOOD: [(&str, &str); 4] = [
        (URL, "vc.example"),
        (DATACENTER, "dc"),
        ("GOVC_USERNAME", "user@vsphere.local"),
        ("GOVC_PASSWORD", "secret"),
    ];

    fn endpoint(key: &str, value: &str) -> Result<String, Vec<&'static str>> {
        let given = GOOD.into_iter().chain([("CLOUD_PROVIDER", "vsphere")]).filter(|(name, _)| *name != key);
        let given = given.chain([(key, value)]).filter(|(_, value)| !value.is_empty());
        let settings = given.map(|(name, value)| (name.to_owned(), SecretString::from(value))).collect();
        let raw = Raw { settings, ..Raw::default() };
        let endpoint = Snapshot::parse(&raw, CATALOGUE).unwrap().endpoint;
        if let Err(malformed) = &endpoint {
            assert!(malformed.iter().all(|it| !it.problem.contains("pa/ss")), "{malformed:?}");
        }
        endpoint.map(|it| it.address).map_err(|all| all.iter().map(|it| it.key).collect())
    }

    #[test]
    fn every_spelling_of_an_address_is_one_place_and_shows_no_user() {
        for url in [
            "vc.example",
            "VC.example/",
            "vc.example/sdk",
            "https://vc.example",
            "https://vc.example/sdk/",
            "https://user:pass@vc.example/sdk",
            "https://DOMAIN\\user:p@ss@vc.example",
            "user:pass@vc.example",
        ] {
            assert_eq!(endpoint(URL, url).as_deref(), Ok("https://vc.example/sdk /dc/vm"), "{url}");
        }
        for (url, expected) in [
            ("vc.example:8443", "https://vc.example:8443/sdk /dc/vm"),
            ("http://127.0.0.1:1/sdk", "http://127.0.0.1:1/sdk /dc/vm"),
            ("https://[fd00::1]/api/vim", "https://[fd00::1]/api/vim /dc/vm"),
        ] {
            assert_eq!(endpoint(URL, url).as_deref(), Ok(expected));
            assert_eq!(Place::recorded(expected).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn a_folder_is_found_below_its_data_centre() {
        for (key, value, folder) in [
            (FOLDER, "", "/dc/vm"),
            (FOLDER, "peer pods", "/dc/vm/peer pods"),
            (FOLDER, "/a//b/", "/dc/vm/a/b"),
            (DATACENTER, "/europe/dc 1/", "/europe/dc 1/vm"),
        ] {
            let address = format!("https://vc.example/sdk {folder}");
            assert_eq!(endpoint(key, value), Ok(address.clone()));
            assert_eq!(Place::recorded(&address).unwrap().folder, folder);
        }
    }

    #[test]
    fn settings_that_deletion_cannot_use_are_named() {
        for url in [
            "",
            "http://vc.example",
            "ftp://vc.example",
            "https://",
            "https://user:pa/ss@vc.example",
            "https://vc.example/sdk?insecure=1",
            "https://vc.example/a b",
            "https://vc.example:port",
        ] {
            assert_eq!(endpoint(URL, url), Err(vec![URL]), "{url}");
        }
        for (key, value) in [
            (DATACENTER, ""),
            (DATACENTER, "/"),
            (DATACENTER, "*"),
            (DATACENTER, "../dc"),
            (FOLDER, "pods-?"),
            (FOLDER, "a/.."),
            ("GOVC_USERNAME", ""),
            ("GOVC_PASSWORD", ""),
            ("GOVC_THUMBPRINT", "AB:CD"),
        ] {
            assert_eq!(endpoint(key, value), Err(vec![key]), "{key}={value}");
        }
        assert!(endpoint("GOVC_THUMBPRINT", &"AB:".repeat(20)).is_ok());
        for address in [
            "",
            "a",
            "https://vc.example/sdk",
            "https://vc.example/sdk ",
            "vc.example /dc/vm",
            "http://a /dc",
        ] {
            assert_eq!(Place::recorded(address), None, "{address}");
        }
    }
}
