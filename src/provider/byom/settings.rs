//! The settings of machines that are there already ("bring your own machine").

use std::time::Duration;

use crate::settings::{Endpoint, Malformed, Values, key::settings};

const NAMESPACE: &str = "POOL_NAMESPACE";
const CONFIG_MAP: &str = "POOL_CONFIGMAP_NAME";

/// The most for each of two steps: the login, and the write that restarts the machine. A deletion has no more time for a machine.
const MOST_PATIENCE: Duration = Duration::from_secs(30);

settings! {
    /// The pool of machines, and how they are reached.
    pub struct Settings {
        /// The machines' addresses, separated by commas. Write each of them: releases of cloud-api-adaptor from v0.18.0 to v0.22.0 take
        /// no address of a range such as 10.0.0.1-10.0.0.9.
        addresses: String = VM_POOL_IPS.required(),
        /// Largest number of addresses in a range. Releases of cloud-api-adaptor from v0.18.0 to v0.22.0 ignore it.
        max_range: String = MAX_RANGE_IPS.default("100"),
        /// User on the machines.
        user: String = SSH_USERNAME.default("peerpod").concerns_deletion(),
        /// File with the public key.
        public_key: String = SSH_PUB_KEY_PATH.default("/root/.ssh/id_rsa.pub"),
        /// File with the private key.
        private_key: String = SSH_PRIV_KEY_PATH.default("/root/.ssh/id_rsa").concerns_deletion(),
        /// How long connecting to a machine may take, in seconds. The operator waits 30 s at most,
        /// and 40 s for the login and the restart together.
        timeout: String = SSH_TIMEOUT.default("30").concerns_deletion(),
        /// Folder with the trusted host keys, in files `*.pub`: /etc/byom/ssh-host-keys for the Secret byom-ssh-host-keys, or
        /// /etc/ssh-allowlist for the Secret ssh-host-key-allowlist. If empty, every host key is trusted.
        host_keys: Option<String> = SSH_HOST_KEY_ALLOWLIST_DIR.concerns_deletion(),
        /// Namespace of the ConfigMap that assigns machines to Pods. If empty, cloud-api-adaptor's own. In
        /// another namespace cloud-api-adaptor and the operator need rights that the installation does not grant.
        pool_namespace: Option<String> = POOL_NAMESPACE.concerns_deletion(),
        /// Name of the ConfigMap that assigns machines to Pods. For another name cloud-api-adaptor and the operator need
        /// rights that the installation does not grant.
        pool: String = POOL_CONFIGMAP_NAME.default("byom-ip-pool-state").concerns_deletion(),
    }
}

impl Settings {
    /// How long each step at a machine may take, at most [`MOST_PATIENCE`]. A malformed setting counts as the most.
    pub(super) fn patience(&self) -> Duration {
        let seconds = self.timeout.parse().ok().filter(|seconds| *seconds > 0);
        seconds.map_or(MOST_PATIENCE, Duration::from_secs).min(MOST_PATIENCE)
    }

    /// The pool's `ConfigMap`: its name, with its namespace in front where the settings name one.
    pub(super) fn place(&self) -> String {
        self.pool_namespace.iter().fold(self.pool.clone(), |name, namespace| format!("{namespace}/{name}"))
    }
}

/// Whether this can be the name of an object. Anything else would ask the API server for something else.
pub(super) fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.len() <= 253
        && text.bytes().all(known)
}

/// Where these settings look for machines.
pub(super) fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let namespace = settings.pool_namespace.as_ref().map(|name| (NAMESPACE, name));
    let names = [(CONFIG_MAP, &settings.pool)].into_iter().chain(namespace);
    let wrong = names.filter(|(_, name)| !is_name(name));
    let malformed: Vec<_> =
        wrong.map(|(key, _)| Malformed::new(key, "it must be the name of an object")).collect();
    let endpoint = Endpoint { setting: CONFIG_MAP, address: settings.place() };
    if malformed.is_empty() { Ok(endpoint) } else { Err(malformed) }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::{
        provider::CATALOGUE,
        settings::{Raw, Snapshot},
    };

    fn snapshot(given: &[(&str, &str)]) -> Snapshot {
        let given = [("CLOUD_PROVIDER", "byom")].iter().chain(given);
        let settings = given.map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect();
        Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap()
    }

    #[test]
    fn the_endpoint_is_the_config_map_of_the_pool() {
        let address = |given: &[(&str, &str)]| snapshot(given).endpoint.map(|it| it.address);
        assert_eq!(address(&[]).as_deref(), Ok("byom-ip-pool-state"));
        assert_eq!(address(&[(NAMESPACE, "pools"), (CONFIG_MAP, "mine")]).as_deref(), Ok("pools/mine"));
        for name in ["a/b", "../x", "a?b", "A", " "] {
            let malformed = address(&[(CONFIG_MAP, name), (NAMESPACE, "a/b")]).unwrap_err();
            assert_eq!(
                malformed.iter().map(|it| it.key).collect::<Vec<_>>(),
                [CONFIG_MAP, NAMESPACE],
                "{name}"
            );
        }
    }

    #[test]
    fn no_setting_makes_a_deletion_wait_for_a_machine_without_end() {
        for (timeout, seconds) in [("5", 5), ("30", 30), ("600", 30), ("0", 30), ("soon", 30), ("-1", 30)] {
            let settings = Settings::read(&snapshot(&[("SSH_TIMEOUT", timeout)]).values);
            assert_eq!(settings.patience().as_secs(), seconds, "{timeout}");
        }
    }
}
