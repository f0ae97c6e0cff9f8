//! The API server's audit log.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use serde_json::{Value, json};

/// The end of an operator's user name, as a line of the log has it.
const OPERATOR: &str = "-operator\"";

/// The audit log of one API server.
#[derive(Clone, Debug)]
pub struct Audit {
    log: PathBuf,
    /// The position at which [`of_operator`](Self::of_operator) begins.
    mark: Arc<AtomicU64>,
}

/// An answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrived.
    pub time: Timestamp,
    /// When it was answered.
    pub answered: Timestamp,
    /// The user that sent it.
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
    /// The body of the request, if the policy logs it. Otherwise null.
    pub body: Value,
}

impl Request {
    /// Whether it is a write.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether an operator sent it: a `ServiceAccount` with an operator's name.
    pub fn is_operators(&self) -> bool {
        self.user.starts_with("system:serviceaccount:") && self.user.ends_with("-operator")
    }
}

impl Audit {
    /// Writes the policy into `dir`: it logs the requests of this namespace's `ServiceAccounts`, and what `rules` add. Returns the
    /// future log, and the API server's flags for it.
    pub fn prepare(dir: &Path, namespace: &str, rules: &[Value]) -> Result<(Self, Vec<String>)> {
        let policy = dir.join("audit-policy.json");
        let group = format!("system:serviceaccounts:{namespace}");
        let last = [json!({ "level": "Metadata", "userGroups": [group] }), json!({ "level": "None" })];
        let rules: Vec<_> = rules.iter().chain(&last).collect();
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
            // All in one file. After 100 MB the server would begin another one, and nobody reads the former one.
            "--audit-log-maxsize=0".to_owned(),
        ];
        Ok((Self { log, mark: Arc::default() }, flags))
    }

    /// Every request of operators since the [mark](Self::mark), or else since the start, without watches that still run.
    pub fn of_operator(&self) -> Result<Vec<Request>> {
        let text = self.read(self.mark.load(Ordering::Relaxed))?;
        // To parse the lines of all others would take most of the time.
        let mut requests = self.parse(text.lines().filter(|line| line.contains(OPERATOR)))?;
        requests.retain(Request::is_operators);
        Ok(requests)
    }

    /// Makes [`of_operator`](Self::of_operator) begin here: a log that many tests share grows long.
    pub fn mark(&self) -> Result<()> {
        self.mark.store(self.end()?, Ordering::Relaxed);
        Ok(())
    }

    /// The position after the last complete line.
    pub fn end(&self) -> Result<u64> {
        let mark = self.mark.load(Ordering::Relaxed);
        Ok(mark + self.read(mark)?.len() as u64)
    }

    /// The logged requests after `position`, which starts at 0. Moves `position` behind them.
    pub fn requests(&self, position: &mut u64) -> Result<Vec<Request>> {
        let text = self.read(*position)?;
        *position += text.len() as u64;
        self.parse(text.lines())
    }

    fn parse<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Result<Vec<Request>> {
        lines
            .map(|line| request(line).with_context(|| format!("in {}: {line}", self.log.display())))
            .collect()
    }

    /// The complete lines after `position`. The last line may be half written.
    fn read(&self, position: u64) -> Result<String> {
        self.complete_lines(position).with_context(|| format!("reading {}", self.log.display()))
    }

    fn complete_lines(&self, position: u64) -> Result<String> {
        let mut log = match File::open(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
            opened => opened?,
        };
        log.seek(SeekFrom::Start(position))?;
        let mut text = Vec::new();
        log.read_to_end(&mut text)?;
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1));
        Ok(String::from_utf8(text)?)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    request_received_timestamp: MicroTime,
    stage_timestamp: MicroTime,
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectReference,
    response_status: Answer,
    #[serde(default)]
    request_object: Value,
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
    let Entry {
        request_received_timestamp: MicroTime(time),
        stage_timestamp: MicroTime(answered),
        verb,
        user,
        object_ref,
        response_status,
        request_object,
    } = serde_json::from_str(line)?;
    let ObjectReference { mut resource, subresource, namespace, name } = object_ref;
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    let (user, code, body) = (user.username, response_status.code, request_object);
    Ok(Request { time, answered, user, verb, resource, namespace, name, code, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_requests_are_those_since_the_mark_and_no_half_line_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (audit, _) = Audit::prepare(dir.path(), "any", &[]).unwrap();
        assert!(audit.of_operator().unwrap().is_empty());
        let line = |user: &str, verb: &str| {
            let time = "2026-11-26T16:46:34.223615Z";
            let entry = json!({
                "requestReceivedTimestamp": time, "stageTimestamp": time, "verb": verb,
                "user": { "username": user }, "responseStatus": { "code": 200 },
            });
            format!("{entry}\n")
        };
        let operator = "system:serviceaccount:any:peerpod-operator";
        let others = line("system:serviceaccount:any:caa", "get") + &line("a-operator", "get");
        let verbs = || audit.of_operator().unwrap().into_iter().map(|it| it.verb).collect::<Vec<_>>();
        let mut text = line(operator, "list") + &others + &line(operator, "patch");
        let end = text.len() as u64;
        text += "{\"half";
        fs::write(&audit.log, &text).unwrap();
        assert_eq!(verbs(), ["list", "patch"]);
        assert_eq!(audit.end().unwrap(), end);

        audit.mark().unwrap();
        assert_eq!(verbs(), [""; 0]);
        text.truncate(usize::try_from(end).unwrap());
        text += &line(operator, "delete");
        fs::write(&audit.log, &text).unwrap();
        assert_eq!(verbs(), ["delete"]);
        assert_eq!(audit.requests(&mut 0).unwrap().len(), 5);
    }
}
