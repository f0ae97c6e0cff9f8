//! The operators in `examples/`: Pods from images of their own, installed from their kustomize bases.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cluster::node;
use serde_json::json;
use testbed::{
    repository, strip,
    wait::{self, DEADLINE},
};

use crate::support::{Installation, PROGRAM, beside_others};

/// Where the right to name an owner is enforced, an API server may take 30 seconds until it knows a new kind as an owner, and the operator's
/// next attempt may then be two minutes away.
const OWNER_IS_KNOWN: &str = "--timeout=180s";

/// The node cannot pull the images of the samples. Pods of namespaces with this label run an image that the node has.
const LABEL: &str = "tests/tiny-image";

/// An example that is installed, and a namespace for its sample.
struct Example<'a> {
    installation: &'a Installation,
    manifests: String,
    namespace: String,
}

/// Runs a test with an example, whose operator works.
fn with(name: &str, test: impl AsyncFnOnce(&Example) -> Result<()>) -> Result<()> {
    let program = Path::new(PROGRAM).with_file_name(name);
    // Its own tests have built it already, unless these run by themselves.
    let built = repository::build(name).arg("--quiet").status().context("running cargo")?;
    ensure!(built.success() && program.exists(), "{} was not built", program.display());
    beside_others(async |installation| {
        let image = format!("{name}-operator:{}", env!("CARGO_PKG_VERSION"));
        let program = strip(&program, &installation.dir)?;
        let image = image::example(&program, &image, &[].into())?;
        installation.testbed.cluster().import(&image).await?;
        let manifests = format!("{}/examples/{name}/manifests", env!("CARGO_MANIFEST_DIR"));
        let namespace = installation.testbed.namespace(name).await?;
        let example = Example { installation, manifests, namespace };
        example.kubectl(&["apply", "--server-side", "--kustomize", &example.manifests]).await?;
        let deployment = format!("deployment/{name}-operator");
        let own = format!("--namespace={name}-operator-system");
        example.kubectl(&["rollout", "status", &deployment, &own, "--timeout=60s"]).await?;
        let outcome = test(&example).await;
        if outcome.is_err() {
            let logs = example.kubectl(&["logs", &deployment, &own, "--all-pods", "--tail=20"]).await;
            return outcome.context(logs.unwrap_or_else(|error| format!("{error:#}")));
        }
        let policies = "mutatingadmissionpolicies,mutatingadmissionpolicybindings";
        example.kubectl(&["delete", policies, &example.namespace]).await?;
        example.kubectl(&["delete", "namespace", &example.namespace, "--timeout=60s"]).await?;
        example.kubectl(&["delete", "--kustomize", &example.manifests, "--timeout=60s"]).await.map(drop)
    })
}

impl Example<'_> {
    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.installation.testbed.cluster().kubectl(arguments).await
    }

    /// The same, in the sample's namespace.
    async fn here(&self, arguments: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={}", self.namespace);
        self.kubectl(&[arguments, &[&namespace]].concat()).await
    }

    async fn create_sample(&self) -> Result<()> {
        self.replace_images().await?;
        self.here(&["apply", "--filename", &format!("{}/sample.yaml", self.manifests)]).await.map(drop)
    }

    /// Makes Pods in the namespace run the program that does nothing.
    async fn replace_images(&self) -> Result<()> {
        let label = format!("{LABEL}={}", self.namespace);
        self.kubectl(&["label", "namespace", &self.namespace, &label]).await?;
        let patches: Vec<_> = [
            ("image", format!("'{}'", node::PAUSE_IMAGE)),
            ("command", "['/pause']".to_owned()),
            ("imagePullPolicy", "'IfNotPresent'".to_owned()),
        ]
        .map(|(field, value)| {
            format!("JSONPatch{{op: 'add', path: '/spec/containers/0/{field}', value: {value}}}")
        })
        .into();
        let object = |kind: &str, spec| {
            let metadata = json!({ "name": self.namespace });
            json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
        };
        let pods = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }]);
        let namespaces = json!({ "matchLabels": { LABEL: self.namespace } });
        let patches = json!({ "expression": format!("[{}]", patches.join(", ")) });
        let policy = json!({
            "matchConstraints": { "namespaceSelector": namespaces, "resourceRules": pods },
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": patches }],
            "reinvocationPolicy": "Never",
        });
        let binding = json!({ "policyName": self.namespace });
        let objects =
            [object("MutatingAdmissionPolicy", policy), object("MutatingAdmissionPolicyBinding", binding)];
        self.installation.testbed.apply(&self.namespace, &objects).await?;
        let output = "--output=jsonpath={.spec.containers[0].image}";
        wait::eventually("Pods get another image", DEADLINE, async || {
            let image = self.here(&["run", "probe", "--image=none", "--dry-run=server", output]).await?;
            ensure!(image == node::PAUSE_IMAGE, "they get {image}");
            Ok(())
        })
        .await
    }

    /// A part of the status, as text.
    async fn status(&self, object: &str, path: &str) -> Result<String> {
        self.here(&["get", object, &format!("--output=jsonpath={{.status{path}}}")]).await
    }

    /// The names of the Pods with a label.
    async fn pods(&self, label: &str) -> Result<String> {
        let names = "--output=jsonpath={.items[*].metadata.name}";
        self.here(&["get", "pods", "--selector", label, names]).await
    }
}

#[test]
fn podset_runs_the_pods_of_its_sample_on_the_real_node() -> Result<()> {
    with("podset", async |example| {
        example.create_sample().await?;
        let three = "--for=jsonpath={.status.availableReplicas}=3";
        example.here(&["wait", three, "podset/podset-sample", OWNER_IS_KNOWN]).await?;
        let ready = ["wait", "--for=condition=Ready", "pod", "--selector=app=podset-sample", "--timeout=60s"];
        let ready = example.here(&ready).await?;
        ensure!(ready.lines().count() == 3, "{ready}");
        // A restart of a container would also be a change. So the status must be as before and list these Pods.
        let told = example.status("podset/podset-sample", ".podNames[*]").await?;
        let pods = example.pods("app=podset-sample").await?;
        ensure!(told == pods, "told {told}, and there are {pods}");
        Ok(())
    })
}

#[test]
fn ptemplate_runs_the_consumer_of_its_sample_on_the_real_node_and_says_so() -> Result<()> {
    with("ptemplate", async |example| {
        // What KMM's device plugin would report.
        let devices = json!({ "example.com/ptemplate": "2" });
        let devices = json!({ "status": { "capacity": devices, "allocatable": devices } }).to_string();
        example.kubectl(&["patch", "node", node::NAME, "--subresource=status", "--patch", &devices]).await?;
        example.create_sample().await?;
        let (object, applied) = ("ptemplate/ptemplate-sample", "--for=condition=ConsumerApplied");
        example.here(&["wait", applied, object, OWNER_IS_KNOWN]).await?;
        let module = example.status(object, ".conditions[?(@.type=='ModuleApplied')].reason").await?;
        ensure!(module == "KmmNotInstalled", "{module}");
        ensure!(example.status(object, ".consumers").await?.is_empty(), "no node is meant so far");

        let node = ["label", "node", node::NAME];
        example.kubectl(&[&node[..], &["node-role.kubernetes.io/worker=worker"]].concat()).await?;
        let one = "--for=jsonpath={.status.numberReady}=1";
        example.here(&["wait", one, "daemonset/ptemplate-sample-consumer", "--timeout=60s"]).await?;
        example.here(&["wait", "--for=jsonpath={.status.consumers[0]}", object, "--timeout=60s"]).await?;
        let told = example.status(object, ".consumers[*]").await?;
        let pods = example.pods("app=ptemplate-sample").await?;
        ensure!(told == pods, "told {told}, and there are {pods}");

        example.kubectl(&[&node[..], &["node-role.kubernetes.io/worker-"]].concat()).await?;
        wait::eventually("no consumer is told", DEADLINE, async || {
            let told = example.status(object, ".consumers").await?;
            ensure!(told.is_empty(), "{told}");
            Ok(())
        })
        .await
    })
}
