//! Tasks on the cluster of the current kubeconfig. They run kubectl with the commands that the documentation gives.

use std::{
    fs,
    io::{Write as _, stderr},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};
use peerpod_operator::{
    install::removal::ALLOW_ANNOTATION,
    names::{CONFIG_MAP, DEFAULT_IMAGE, SECRET},
};

use crate::{artifacts, repository};

const CRDS: &str = "manifests/crd";
const SAMPLES: &str = "manifests/samples";

/// The label of everything that belongs to an installation.
const REMOVABLE: &str = "app.kubernetes.io/part-of=peer-pods";

/// What else `install` does.
#[derive(Args)]
pub(crate) struct Install {
    #[command(subcommand)]
    then: Option<Then>,
}

#[derive(Subcommand)]
enum Then {
    /// Runs the operator, too
    Run(Run),
}

/// How the operator runs.
#[derive(Args)]
pub(crate) struct Run {
    /// Arguments of `peerpod-operator run`, such as --settings-dir; it runs without leader election unless they say otherwise
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What is deployed.
#[derive(Args)]
pub(crate) struct Deploy {
    /// The provider, which is an overlay in kustomize/
    #[arg(long, default_value = "libvirt")]
    provider: String,
    /// The operator's image
    #[arg(long, default_value = DEFAULT_IMAGE)]
    image: String,
}

/// Applies the CRDs and waits until the API server has their kinds. Perhaps runs the operator.
pub(crate) fn install(task: &Install) -> Result<()> {
    let crds = of_repository(CRDS);
    kubectl(&["apply", "--server-side", "-f", &crds])?;
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &crds])?;
    match &task.then {
        Some(Then::Run(task)) => run(task),
        None => Ok(()),
    }
}

/// Deletes the CRDs, unless an operator uses them, or PeerPods or PeerPodConfigs are left.
pub(crate) fn uninstall() -> Result<()> {
    ensure_none_runs()?;
    ensure_nothing_left()?;
    let crds = of_repository(CRDS);
    kubectl(&["annotate", "--overwrite", "-f", &crds, &allow_removal()])?;
    kubectl(&["delete", "--ignore-not-found", "-f", &crds])
}

/// Fails if PeerPods or PeerPodConfigs are left.
fn ensure_nothing_left() -> Result<()> {
    let left = |kind| output(&["get", kind, "--all-namespaces", "--ignore-not-found", "--output=name"]);
    let count = left("peerpods")?.lines().count();
    ensure!(
        count == 0,
        "{count} PeerPods are left, and each records a VM that would not be deleted; delete the peer pods first: \
         kubectl get peerpods --all-namespaces"
    );
    let count = left("peerpodconfigs")?.lines().count();
    ensure!(
        count == 0,
        "{count} PeerPodConfigs are left, and only the operator can undo what it did for them; delete them while it runs: \
         kubectl delete peerpodconfigs --all --all-namespaces"
    );
    Ok(())
}

/// Runs the operator on this machine, until it is stopped.
pub(crate) fn run(task: &Run) -> Result<()> {
    let elects = |arguments: &[String]| matches!(arguments, [flag, value] if flag == "--leader-elect" && value == "true");
    if !task.arguments.iter().any(|it| it == "--leader-elect=true") && !task.arguments.windows(2).any(elects)
    {
        ensure_none_runs()?;
    }
    let mut operator = developers("peerpod-operator")?;
    // It replaces this process, and so gets its signals.
    Err(operator.args(&task.arguments).exec()).context("running the operator")
}

/// Fails if the cluster runs an operator: without leader election both would act, and without the CRDs it could do nothing.
fn ensure_none_runs() -> Result<()> {
    const EACH: &str =
        "--output=jsonpath={range .items[*]}{.metadata.namespace} {.spec.replicas}{\"\\n\"}{end}";
    // helm installs it into any namespace.
    let named = "--field-selector=metadata.name=peerpod-operator";
    let deployments = output(&["get", "deployments", "--all-namespaces", named, EACH])?;
    let running =
        deployments.lines().filter_map(|it| it.split_once(' ')).find(|(_, replicas)| *replicas != "0");
    if let Some((namespace, _)) = running {
        bail!(
            "the cluster runs an operator already; stop it first: kubectl --namespace {namespace} scale deployment \
             peerpod-operator --replicas=0"
        );
    }
    Ok(())
}

/// An operator for this machine, built if need be. A developer's operator has no competitor, and should not wait for the lease of one that
/// was killed.
pub(crate) fn developers(name: &str) -> Result<Command> {
    let program = artifacts::program(repository::build(name).arg(artifacts::FORMAT), name)?;
    let mut operator = Command::new(program);
    operator.args(["run", "--leader-elect=false"]);
    Ok(operator)
}

/// Installs everything by kustomize, with this image. Settings that the cluster has stay.
pub(crate) fn deploy(task: &Deploy) -> Result<()> {
    let folder = kustomization(task, &settings_that_stay()?)?;
    kubectl(&["apply", "--server-side", "--force-conflicts", "-k", &folder.display().to_string()])
}

/// Drains the installation, then deletes it.
pub(crate) fn undeploy(task: &Deploy) -> Result<()> {
    // A misspelt provider must drain nothing.
    let folder = kustomization(task, "")?;
    let operator = ["exec", "deploy/peerpod-operator", "--", "peerpod-operator", "drain"];
    let drained = kubectl(&[&["--namespace", peerpod_operator::NAMESPACE], &operator[..]].concat());
    // One that never ran, or that was deleted before, can drain nothing.
    drained
        .or_else(|problem| ensure_nothing_left().map_err(|left| left.context(problem)))
        .context("the installation was not drained, and nothing was deleted")?;
    kubectl(&["annotate", "--overwrite", "crd,namespace", "-l", REMOVABLE, &allow_removal()])?;
    kubectl(&["delete", "--ignore-not-found", "-k", &folder.display().to_string()])
}

/// Applies a PeerPodConfig and a peer pod.
pub(crate) fn samples() -> Result<()> {
    kubectl(&["apply", "-f", &of_repository(SAMPLES)])
}

/// The annotation that lets the guard pass a deletion, for kubectl.
fn allow_removal() -> String {
    format!("{ALLOW_ANNOTATION}=true")
}

/// Patches that leave out settings that the cluster has: those of the overlay, most of them empty, would replace them.
fn settings_that_stay() -> Result<String> {
    let (mut patches, namespace) = (Vec::new(), peerpod_operator::NAMESPACE);
    for (kind, name) in [("ConfigMap", CONFIG_MAP), ("Secret", SECRET)] {
        let query = ["get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"];
        if output(&query)?.is_empty() {
            continue;
        }
        writeln!(stderr(), "The {kind} {name} stays as it is.")?;
        let object = format!("kind: {kind}, metadata: {{name: {name}, namespace: {namespace}}}");
        patches.push(format!("- patch: '{{$patch: delete, apiVersion: v1, {object}}}'\n"));
    }
    Ok(if patches.is_empty() { String::new() } else { format!("patches:\n{}", patches.concat()) })
}

/// A kustomization of the provider's overlay with the image and these patches.
fn kustomization(task: &Deploy, patches: &str) -> Result<PathBuf> {
    let root = repository::root();
    let overlay = Path::new("kustomize/overlays").join(&task.provider);
    // An empty one, as of a variable that is not set, would be the folder of all overlays.
    let is_name = !task.provider.is_empty() && !task.provider.contains(['/', '.']);
    ensure!(
        is_name && root.join(&overlay).is_dir(),
        "there is no overlay {}; see kustomize/overlays",
        overlay.display()
    );
    let folder = root.join("target/deploy");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let (name, tag) = split(&task.image);
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../../{}]\nimages:\n- name: {}\n  \
         newName: {name}\n  {tag}\n{patches}",
        overlay.display(),
        split(DEFAULT_IMAGE).0,
    );
    fs::write(folder.join("kustomization.yaml"), text).context("writing the kustomization")?;
    Ok(folder)
}

/// An image's name, and its tag or digest as a kustomization spells it.
fn split(image: &str) -> (&str, String) {
    if let Some((name, digest)) = image.split_once('@') {
        return (name, format!("digest: {digest}"));
    }
    match image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((name, tag)) => (name, format!("newTag: {tag:?}")),
        None => (image, "newTag: latest".to_owned()),
    }
}

/// A path of the repository. kubectl runs in the caller's folder, to which the paths in `KUBECONFIG` may be relative.
fn of_repository(path: &str) -> String {
    repository::root().join(path).display().to_string()
}

fn kubectl(arguments: &[&str]) -> Result<()> {
    kubectl_ended(Command::new("kubectl").args(arguments))
}

fn output(arguments: &[&str]) -> Result<String> {
    let output =
        Command::new("kubectl").args(arguments).stderr(Stdio::piped()).output().context(NO_KUBECTL)?;
    let problem = String::from_utf8_lossy(&output.stderr);
    // Without the definition there are no such objects.
    if problem.contains("the server doesn't have a resource type") {
        return Ok(String::new());
    }
    ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), problem.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const NO_KUBECTL: &str =
    "running kubectl; put it on the PATH, or start a cluster that brings it: cargo xtask cluster up";

/// Runs this kubectl to its end. Fails unless it succeeds.
pub(crate) fn kubectl_ended(command: &mut Command) -> Result<()> {
    let status = command.status().context(NO_KUBECTL)?;
    ensure!(status.success(), "kubectl ended with {status}; see above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_tag_or_a_digest_behind_its_name() {
        for (image, name, rest) in [
            ("a.example:5000/b", "a.example:5000/b", "newTag: latest"),
            ("a.example:5000/b:v1", "a.example:5000/b", "newTag: \"v1\""),
            ("b@sha256:12", "b", "digest: sha256:12"),
        ] {
            assert_eq!(split(image), (name, rest.to_owned()));
        }
    }
}
