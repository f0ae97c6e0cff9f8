//! `apply`: makes a PeerPodConfig in the cluster as a file has it, also while its CRD is being installed.

use std::{
    fmt, fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use operator_kit::{
    Permission,
    api_call::{ApiError, bounded, get_opt},
    client,
};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{drain::END_PATIENCE, patience, retry::Retry, serving::block_on, terminal};
use crate::api::v1alpha1::{CRDS, PeerPodConfig};

/// For `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  the PeerPodConfig is applied
  1  it is not: the file is invalid, or the API server refuses it or does not answer in time
  2  the arguments are invalid";

/// Its permission in the operator's namespace, on the PeerPodConfig of its file. It is not among the operator's own rights.
///
/// An apply names what it creates, so this right can be limited to a name, too.
pub const PERMISSION: Permission =
    Permission::new("confidentialcontainers.org", &["peerpodconfigs"], &["create", "get", "patch"]);

/// What it may do with the Deployment of `--after-rollout`.
pub const ROLLOUT_PERMISSION: Permission = Permission::new("apps", &["deployments"], &["get"]);

/// The owner of the fields that the file names. Fields that it names no more are removed; those of other owners stay.
const FIELD_MANAGER: &str = "peerpod-operator-apply";

/// How long an API server may still use a CRD that was replaced a moment ago.
const SETTLES: Duration = Duration::from_secs(10);

/// Arguments of `apply`.
#[derive(Clone, Debug, Args)]
pub struct ApplyArgs {
    /// File with one PeerPodConfig, as YAML or JSON
    pub file: PathBuf,

    /// Time limit, from 1s to 24h, such as 1h 30m
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_TIMEOUT",
        default_value = "1m",
        value_parser = patience
    )]
    pub timeout: Duration,

    /// First wait until this Deployment has only Pods of its present revision: an earlier operator would act on what is applied
    #[arg(long, value_name = "DEPLOYMENT", env = "PEERPOD_OPERATOR_AFTER_ROLLOUT")]
    pub after_rollout: Option<String>,

    /// The namespace of the PeerPodConfig, if the file names none
    #[arg(
        long,
        value_name = "NS",
        env = "PEERPOD_OPERATOR_NAMESPACE",
        default_value = crate::NAMESPACE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub namespace: String,
}

pub(super) fn apply(args: &ApplyArgs) -> ExitCode {
    block_on(apply_file(args), |problem| terminal::problem("apply", problem))
}

async fn apply_file(args: &ApplyArgs) -> Result<(), String> {
    let deadline = Instant::now() + args.timeout;
    let mut patience = Patience { deadline, settled: None };
    let text = fs::read_to_string(&args.file)
        .map_err(|problem| format!("reading {}: {problem}", args.file.display()))?;
    let config = Config::parse(&text, &args.namespace)
        .map_err(|problem| format!("{}: {problem}", args.file.display()))?;
    let client = client::infer().await.map_err(|problem| problem.to_string())?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &config.namespace);
    let api: Api<PeerPodConfig> = Api::namespaced(client, &config.namespace);
    let mut retry = Retry::new(|problem| terminal::problem("apply", problem));
    let mut all_ended = None;
    loop {
        let step = async {
            if let Some(deployment) = &args.after_rollout {
                let found = bounded(deployments.get(deployment)).await?;
                rolled_out(found, deployment, &mut all_ended, Instant::now())?;
            }
            attempt(&api, &config).await
        };
        let obstacle = match timeout_at(deadline, step).await {
            Ok(Ok(())) => {
                // A program that does not read the output has the exit code.
                let _ = writeln!(io::stdout(), "Applied {config} from {}.", args.file.display());
                return Ok(());
            }
            Ok(Err(obstacle)) => obstacle,
            Err(_) => Obstacle::Later("the API server does not answer".to_owned()),
        };
        let until = patience.until(&obstacle, Instant::now());
        let (Obstacle::Later(problem) | Obstacle::Invalid(problem)) = obstacle;
        if !retry.pause(&problem, until).await {
            return Err(format!("{config} was not applied: {problem}"));
        }
    }
}

/// Why it did not work yet.
enum Obstacle {
    /// Something that passes.
    Later(String),
    /// The API server takes it for invalid.
    Invalid(String),
}

/// The time for retries.
struct Patience {
    deadline: Instant,
    /// When no API server uses an older CRD any more, counted from the first refusal: the CRD may be replaced long after the
    /// first try.
    settled: Option<Instant>,
}

impl Patience {
    fn until(&mut self, obstacle: &Obstacle, now: Instant) -> Instant {
        match obstacle {
            Obstacle::Later(_) => self.deadline,
            Obstacle::Invalid(_) => self.deadline.min(*self.settled.get_or_insert(now + SETTLES)),
        }
    }
}

impl From<ApiError> for Obstacle {
    fn from(problem: ApiError) -> Self {
        // For a field that the schema lacks, and for a value of another type, the API server answers an apply with 500.
        let is_untyped = matches!(
            problem.cause(),
            Some(kube::Error::Api(status)) if status.message.starts_with("failed to create typed patch object")
        );
        match problem.code() {
            Some(code) if is_untyped || matches!(code, 400 | 422) => Self::Invalid(problem.to_string()),
            _ => Self::Later(
                problem
                    .cause()
                    .and_then(|it| CRDS.missing::<PeerPodConfig>(it))
                    .unwrap_or_else(|| problem.to_string()),
            ),
        }
    }
}

/// Whether all Pods of a Deployment are of its present revision, or none is ready. If none is ready, no operator acts yet, and
/// the rollout may wait for what is applied. A terminating Pod may still lead. On a lost node it never ends, and cannot lead. So the
/// wait for such Pods has an end: `until`, counted from when the other Pods were as they should be.
fn rolled_out(
    deployment: Deployment,
    name: &str,
    until: &mut Option<Instant>,
    now: Instant,
) -> Result<(), Obstacle> {
    let Deployment { metadata, status, .. } = deployment;
    let status = status.unwrap_or_default();
    let [all, updated] = [status.replicas, status.updated_replicas].map(Option::unwrap_or_default);
    let none_ready = status.ready_replicas.unwrap_or_default() == 0;
    // Kubernetes counts these since 1.35.
    let terminating = status.terminating_replicas.unwrap_or_default();
    if status.observed_generation != metadata.generation || (all != updated && !none_ready) {
        *until = None;
    } else if terminating == 0 || now >= *until.get_or_insert(now + END_PATIENCE) {
        return Ok(());
    }
    Err(Obstacle::Later(format!(
        "the Deployment {name} has {updated} Pods of its present revision and {} of earlier ones, and {terminating} more terminate; \
         `kubectl -n {} rollout status deployment/{name}` shows the progress",
        all.saturating_sub(updated),
        metadata.namespace.unwrap_or_default()
    )))
}

async fn attempt(api: &Api<PeerPodConfig>, config: &Config) -> Result<(), Obstacle> {
    let found = get_opt(api, &config.name).await?;
    // The operator needs the former spec to restore the nodes.
    if let Some(found) = found {
        ensure_stays(&found)?;
    }
    let params = PatchParams { force: true, ..PatchParams::apply(FIELD_MANAGER).validation_strict() };
    ensure_stays(&bounded(api.patch(&config.name, &params, &Patch::Apply(&config.object))).await?)
}

fn ensure_stays(config: &PeerPodConfig) -> Result<(), Obstacle> {
    if config.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    Err(Obstacle::Later(
        "the PeerPodConfig is being deleted; apply creates it again when the operator has finished that"
            .to_owned(),
    ))
}

/// A `PeerPodConfig` as a file has it, with exactly the fields that it names.
struct Config {
    name: String,
    namespace: String,
    object: Value,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the PeerPodConfig {}/{}", self.namespace, self.name)
    }
}

impl Config {
    fn parse(text: &str, namespace: &str) -> Result<Self, String> {
        let object: Value = serde_saphyr::from_str(text).map_err(|problem| problem.to_string())?;
        let (version, kind) = (PeerPodConfig::api_version(&()), PeerPodConfig::kind(&()));
        if object["apiVersion"] != *version || object["kind"] != *kind {
            return Err(format!("the file does not contain a {kind} of {version}"));
        }
        let metadata = |field: &str| object["metadata"][field].as_str();
        let name = metadata("name").ok_or("the file has no metadata.name")?.to_owned();
        let namespace = metadata("namespace").unwrap_or(namespace).to_owned();
        Ok(Self { name, namespace, object })
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_is_retried_for_a_limited_time_after_the_first_one() {
        let now = Instant::now();
        let (invalid, later) = (Obstacle::Invalid(String::new()), Obstacle::Later(String::new()));
        let mut patience = Patience { deadline: now + 4 * SETTLES, settled: None };
        assert_eq!(patience.until(&later, now), now + 4 * SETTLES);
        assert_eq!(patience.until(&invalid, now + 2 * SETTLES), now + 3 * SETTLES);
        assert_eq!(patience.until(&invalid, now + 3 * SETTLES), now + 3 * SETTLES);
        let mut patience = Patience { deadline: now + SETTLES / 2, settled: None };
        assert_eq!(patience.until(&invalid, now), now + SETTLES / 2);
    }

    #[test]
    fn a_value_that_the_schema_does_not_allow_is_invalid_whatever_the_code_is() {
        let obstacle = |code: u16, message: &str| {
            let status = Status::failure(message, "").with_code(code).boxed();
            Obstacle::from(ApiError::from(kube::Error::Api(status)))
        };
        let untyped = "failed to create typed patch object (ns/a; v1, Kind=PeerPodConfig): .spec.a: field not declared in schema";
        assert!(matches!(obstacle(500, untyped), Obstacle::Invalid(_)));
        assert!(matches!(obstacle(422, "is invalid"), Obstacle::Invalid(_)));
        assert!(matches!(obstacle(500, "etcd is down"), Obstacle::Later(_)));
    }

    #[test]
    fn a_rollout_is_over_when_no_earlier_pod_is_left_that_terminates() {
        let now = Instant::now();
        let over_at = |now, until: &mut Option<Instant>, status: serde_json::Value| {
            let object = serde_json::json!({ "metadata": { "generation": 2 }, "status": status });
            rolled_out(serde_json::from_value(object).unwrap(), "operator", until, now).is_ok()
        };
        let over = |status: serde_json::Value| over_at(now, &mut None, status);
        let status = |all: i32, updated: i32, ready: i32, terminating: Option<i32>| {
            serde_json::json!({
                "observedGeneration": 2, "replicas": all, "updatedReplicas": updated, "readyReplicas": ready,
                "terminatingReplicas": terminating,
            })
        };
        assert!(over(status(2, 2, 2, None)) && over(status(2, 2, 2, Some(0))));
        assert!(over(status(3, 1, 0, None)), "none is ready");
        assert!(!over(status(2, 2, 2, Some(1))) && !over(status(3, 1, 0, Some(1))));
        assert!(!over(status(3, 2, 2, None)));
        let stale = serde_json::json!({ "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2 });
        assert!(!over(stale));
        // The last one is on a lost node, and never ends.
        let (late, mut until) = (now + END_PATIENCE, None);
        assert!(!over_at(now, &mut until, status(2, 2, 2, Some(1))));
        assert!(!over_at(late - Duration::from_secs(1), &mut until, status(2, 2, 2, Some(1))));
        assert!(over_at(late, &mut until, status(2, 2, 2, Some(1))));
        // Another rollout has Pods of its own that terminate.
        assert!(!over_at(late, &mut until, status(3, 2, 2, Some(1))));
        assert!(!over_at(late, &mut until, status(2, 2, 2, Some(1))));
    }

    #[test]
    fn a_file_names_one_configuration_and_no_more_fields_than_it_has() {
        let text = "apiVersion: confidentialcontainers.org/v1alpha1\nkind: PeerPodConfig\nmetadata: {name: a}\nspec: {limit: '5'}\n";
        let config = Config::parse(text, "here").unwrap();
        assert_eq!(config.to_string(), "the PeerPodConfig here/a");
        assert_eq!(config.object["spec"], serde_json::json!({ "limit": "5" }));
        let elsewhere = text.replace("{name: a}", "{name: a, namespace: there}");
        assert_eq!(Config::parse(&elsewhere, "here").unwrap().namespace, "there");
        for (text, expected) in [
            (
                text.replace("PeerPodConfig", "PeerPod"),
                "does not contain a PeerPodConfig of confidentialcontainers.org/v1alpha1",
            ),
            (text.replace("v1alpha1", "v1"), "does not contain a PeerPodConfig"),
            (text.replace("name: a", "nam: a"), "no metadata.name"),
            (format!("{text}---\n{text}"), "multiple"),
            (String::new(), "does not contain a PeerPodConfig"),
            ("{".to_owned(), ""),
        ] {
            let problem = Config::parse(&text, "here").err().unwrap();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
