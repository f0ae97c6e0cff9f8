//! What the API server's audit log tells.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use peerpod_operator::{NAMESPACE, install};
use serde::Deserialize;
use serde_json::json;

/// The audit log of one API server: every request of a `ServiceAccount` of the installation's namespace.
#[derive(Clone, Debug)]
pub struct Audit {
    log: PathBuf,
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asked.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The resource's plural name, a subresource as `resource/subresource`; empty where no resource was meant.
    pub resource: String,
    /// The namespace, empty for all or none.
    pub namespace: String,
    /// The object's name, empty where none was given.
    pub name: String,
    /// The answer's HTTP status.
    pub code: u16,
}

impl Request {
    /// Whether it was to change something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

impl Audit {
    /// Writes the policy into `dir`; gives the log to be, and the API server's flags for it.
    pub(crate) fn prepare(dir: &Path) -> Result<(Self, Vec<String>)> {
        let policy = dir.join("audit-policy.json");
        let group = format!("system:serviceaccounts:{NAMESPACE}");
        let rules = json!([{ "level": "Metadata", "userGroups": [group] }, { "level": "None" }]);
        let text = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": rules,
        });
        fs::write(&policy, text.to_string()).with_context(|| format!("writing {}", policy.display()))?;
        let log = dir.join("audit.log");
        let flags = vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ];
        Ok((Self { log }, flags))
    }

    /// Every request of the operator so far. Watches that still run are not among them.
    pub fn of_operator(&self) -> Result<Vec<Request>> {
        let user = format!("system:serviceaccount:{NAMESPACE}:{}", install::NAME);
        let mut requests = self.requests()?;
        requests.retain(|request| request.user == user);
        Ok(requests)
    }

    fn requests(&self) -> Result<Vec<Request>> {
        let text = match fs::read_to_string(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("reading {}", self.log.display()))?,
        };
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines
            .map(|line| request(line).with_context(|| format!("in {}: {line}", self.log.display())))
            .collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectReference,
    response_status: Answer,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectReference {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Answer {
    code: u16,
}

fn request(line: &str) -> serde_json::Result<Request> {
    let Entry { verb, user, object_ref, response_status } = serde_json::from_str(line)?;
    let ObjectReference { mut resource, subresource, namespace, name } = object_ref;
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    Ok(Request { user: user.username, verb, resource, namespace, name, code: response_status.code })
}
