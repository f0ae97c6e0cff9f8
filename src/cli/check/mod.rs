//! `check`: says what `run` would use, and whether it would work.

mod document;
mod redaction;
mod text;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use kube::Client;
use operator_kit::{
    Message,
    client::{self, ClientError},
    lifecycle,
};
use secrecy::ExposeSecret;
use tokio::time::timeout;

use self::{
    document::{Cloud, Document, Outcome},
    redaction::Redaction,
};
use super::{FolderArgs, NamespaceArgs, terminal};
use crate::{
    cluster::read_uid,
    provider::{self, CATALOGUE, Error, ErrorClass, Openers, Opening, Provider, Tagging},
    settings::{Folders, Inspection, Snapshot},
};

/// For `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  the settings are correct, and the cloud answers; there may be warnings
  1  the settings are wrong, or the cloud says that they are
  2  the arguments are invalid
  3  the settings are correct, but the cloud cannot be reached or refuses
  4  the report cannot be created or written";

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The folders that are checked.
    #[command(flatten)]
    pub folders: FolderArgs,

    /// The operator, by its namespace.
    #[command(flatten)]
    pub operator: NamespaceArgs,

    /// Format of the report
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        env = "PEERPOD_OPERATOR_OUTPUT",
        value_enum,
        default_value = "text"
    )]
    pub output: OutputFormat,
}

/// How a report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text, in colour on a terminal
    Text,
    /// One JSON document
    Json,
}

/// How long the cloud may take for all of it.
const CLOUD_DEADLINE: Duration = Duration::from_secs(20);

/// How many calls are made at once.
const CALLS: usize = 10;

/// The subject of the finding about whose the VMs are.
const CLUSTER: &str = "cluster of the VMs";

pub(super) fn check(args: CheckArgs) -> ExitCode {
    let document =
        examine(&args.folders.into(), &args.operator.namespace).map_err(|problem| problem.to_string());
    let outcome = document.and_then(|document| {
        terminal::reported(print(&document, args.output))?;
        Ok(document.result)
    });
    match outcome {
        Ok(Outcome::Ok) => ExitCode::SUCCESS,
        Ok(Outcome::Settings) => ExitCode::from(1),
        Ok(Outcome::Cloud) => ExitCode::from(3),
        Err(problem) => {
            terminal::problem("check", &problem);
            ExitCode::from(4)
        }
    }
}

fn examine(folders: &Folders, namespace: &str) -> io::Result<Document> {
    let inspection = Inspection::of(folders, CATALOGUE);
    let cloud = match &inspection.snapshot {
        Some(snapshot) if inspection.is_right() => {
            let answer = lifecycle::block_on(ask(snapshot, namespace))?;
            Cloud::new(answer, &Redaction::of(&inspection.hidden))
        }
        _ => Cloud::NotTried,
    };
    Ok(Document::new(folders, inspection, cloud))
}

async fn ask(snapshot: &Snapshot, namespace: &str) -> Result<Vec<provider::Finding>, Error> {
    let no_end = || format!("the kubeconfig's exec plugin did not end within {CLOUD_DEADLINE:?}");
    let cluster = timeout(CLOUD_DEADLINE, client::infer()).await;
    let cluster = cluster.unwrap_or_else(|_| Err(ClientError::Credentials(no_end())));
    let client = cluster.as_ref().ok().cloned();
    let provider = open(snapshot, cluster, namespace)?;
    let examined = timeout(CLOUD_DEADLINE, provider.examine()).await.unwrap_or_else(|_| {
        let cloud = snapshot.cloud();
        let message =
            format!("{cloud} did not answer all calls within {CLOUD_DEADLINE:?}: it hangs or is overloaded");
        Err(Error::new(ErrorClass::Transient, Message::public(message)))
    });
    Ok(examined?.into_iter().chain(cluster_of_vms(snapshot, client.as_ref()).await).collect())
}

/// Whether the VMs are this cluster's, if the settings say whose they are.
async fn cluster_of_vms(snapshot: &Snapshot, client: Option<&Client>) -> Option<provider::Finding> {
    let Snapshot { common, values, .. } = snapshot;
    let text = |key: &str| values.get(key).map_or("", ExposeSecret::expose_secret);
    let own_tag = provider::Cloud::named(snapshot.cloud()).and_then(|cloud| cloud.own_tag);
    let tagging = Tagging {
        tags: text("TAGS"),
        own_tag: own_tag.map(|(setting, key)| (key, text(setting))),
        sweep_tag: common.sweep_tag.as_deref().unwrap_or_default(),
        sweep_exclusive: common.sweep_exclusive,
        sweep_cluster: common.sweep_cluster.as_deref().unwrap_or_default(),
    };
    if !tagging.names_cluster() {
        return None;
    }
    let uid = match client {
        Some(client) => read_uid(client).await.map_err(|error| error.to_string()),
        None => Err("no cluster can be reached".to_owned()),
    };
    let uid = match uid.and_then(|uid| uid.ok_or_else(|| "it has none".to_owned())) {
        Ok(uid) => uid,
        Err(problem) => {
            let why = "check cannot read the UID of the namespace kube-system here, with which it compares the settings";
            return Some(provider::Finding::untried(CLUSTER, format!("{why}: {problem}")));
        }
    };
    let answer = match tagging.problem(&uid) {
        Some(problem) => Err(Error::new(ErrorClass::Invalid, problem)),
        None => Ok("the settings are for this cluster".to_owned()),
    };
    Some(provider::Finding::tried(CLUSTER, answer))
}

/// Opens the cloud. Few clouds need the cluster. The others are checked without it.
fn open(
    snapshot: &Snapshot,
    cluster: Result<Client, ClientError>,
    namespace: &str,
) -> Result<Box<dyn Provider>, Error> {
    let (openers, problem) = match cluster {
        Ok(client) => (Openers::default().in_cluster(client, namespace), None),
        Err(problem) => (Openers::default(), Some(problem.to_string())),
    };
    openers.open(snapshot, Opening::new(CALLS)).map_err(|error| match &problem {
        // A cloud that needs the cluster counts as not reached without it.
        Some(problem) if error.class == ErrorClass::Transient => error.advising(problem),
        _ => error,
    })
}

/// Writes the report at once.
fn print(document: &Document, format: OutputFormat) -> io::Result<()> {
    let mut out = BufWriter::new(anstream::stdout());
    match format {
        OutputFormat::Text => out.write_all(text::render(document).as_bytes())?,
        OutputFormat::Json => terminal::json(&mut out, document)?,
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::json;

    use super::*;
    use crate::settings::Raw;

    #[tokio::test]
    async fn settings_that_tag_vms_as_another_clusters_are_wrong() {
        let outcome = async |tags: &str, here: Option<&str>| {
            let exclusive = if tags.is_empty() { "true" } else { "false" };
            let settings = [
                ("CLOUD_PROVIDER", "aws"),
                ("TAGS", tags),
                ("SWEEP_CLUSTER", "uid-1"),
                ("SWEEP_EXCLUSIVE", exclusive),
            ];
            let settings = settings.map(|(key, value)| (key.to_owned(), value.into())).into();
            let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
            let namespace = |uid: &str| json!({ "metadata": { "name": "kube-system", "uid": uid } });
            let asked = here.map(|uid| {
                Call::get("/api/v1/namespaces/kube-system").answer(Answer::json(200, &namespace(uid)))
            });
            let server = ApiServer::expecting(asked);
            let client = here.map(|_| server.client());
            let finding = cluster_of_vms(&snapshot, client.as_ref()).await;
            finding.map(|found| Cloud::new(Ok(vec![found]), &Redaction::default()).outcome())
        };
        let tag = "team=a,caa-cluster-uid=uid-1";
        assert_eq!(outcome(tag, Some("uid-1")).await, Some(Outcome::Ok));
        assert_eq!(outcome(tag, Some("uid-2")).await, Some(Outcome::Settings));
        assert_eq!(outcome(tag, None).await, Some(Outcome::Ok), "without access to the cluster");
        assert_eq!(outcome("team=a", None).await, None);
        assert_eq!(
            outcome("", Some("uid-2")).await,
            Some(Outcome::Settings),
            "all VMs of the place are another's"
        );
    }

    #[test]
    fn without_access_to_the_cluster_a_cloud_that_needs_it_is_not_reached_and_the_report_says_why() {
        let settings = [("CLOUD_PROVIDER".to_owned(), "byom".into())].into();
        let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
        let text = "users:\n- name: me\n  user:\n    token: secret-token\nclusters: 5\n";
        let problem = Kubeconfig::from_yaml(text).unwrap_err();
        let answer = open(&snapshot, Err(problem.into()), crate::NAMESPACE).map(|_| Vec::new());
        let cloud = Cloud::new(answer, &Redaction::default());
        assert_eq!(cloud.outcome(), Outcome::Cloud, "the settings are right: {cloud:?}");
        let Cloud::Unreached { error, .. } = &cloud else { panic!("{cloud:?}") };
        assert!(error.contains("the pool of machines is in the cluster"), "{error}");
        assert!(error.contains("failed to parse kubeconfig YAML"), "{error}");
        assert!(!error.contains("secret-token") && !error.contains('\n'), "{error}");
    }
}
