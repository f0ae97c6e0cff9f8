//! `cargo xtask example ptemplate demo`: the story of the example, on a real control plane.

use anyhow::{Context as _, Result, ensure};
use testbed::wait::{self, DEADLINE};

use super::{
    example::{Story, end},
    fact::{Fact, PodChange},
};
use crate::{example::Example, repository};

const INTRODUCTION: &str = "A Ptemplate loads a kernel module by KMM and runs a consumer of its devices beside it. Its operator is an \
     example: about 500 lines on crates/operator-kit.\n\
     Real: etcd, API server, scheduler, controller manager with its garbage collector, and the operator under its own \
     ServiceAccount's token. Played: the node's kubelet, by kwok, its devices, and KMM, of which there is the definition of the Module alone. \
     Every line of the timeline was observed: by a watch of the API server, or in its audit log.";

const NAME: &str = "ptemplate-sample";
const CONSUMER: &str = "daemonset/ptemplate-sample-consumer";

pub(crate) async fn run() -> Result<()> {
    let mut story = Ptemplate(Story::begin(Example::Ptemplate, "Ptemplate: the demo", INTRODUCTION).await?);
    story.play().await?;
    end(Example::Ptemplate)
}

struct Ptemplate(Story);

impl Ptemplate {
    async fn play(&mut self) -> Result<()> {
        let folder = repository::root().join("examples/ptemplate");
        let file = |path: &str| {
            let path = folder.join(path).to_str().map(str::to_owned);
            path.context("the repository's folder has no UTF-8 name")
        };
        self.0.kubectl(&["label", "nodes", "--all", "node-role.kubernetes.io/worker=worker"]).await?;
        self.0.kubectl(&["apply", "--filename", &file("manifests/sample.yaml")?]).await?;
        self.is("KMM is missing, and that is told", &reason("ModuleApplied"), "KmmNotInstalled").await?;
        let devices = r#"{"status":{"capacity":{"example.com/ptemplate":"5"},"allocatable":{"example.com/ptemplate":"5"}}}"#;
        let node = self.0.ask(&["get", "nodes", "--output=jsonpath={.items[0].metadata.name}"]).await?;
        self.0
            .kubectl(&["patch", "node", &node, "--subresource=status", "--type=merge", "--patch", devices])
            .await?;
        self.0.timeline.until("the consumer runs", runs).await?;
        wait::eventually("the status names the consumer", DEADLINE, async || {
            let told = self.read(&["ptemplate", NAME], "{.status.consumers[*]}").await?;
            ensure!(!told.is_empty(), "it names none");
            Ok(())
        })
        .await?;
        self.0.check("KMM is not installed. The status says so, and the consumer runs all the same.").await?;

        self.0.kubectl(&["apply", "--server-side", "--filename", &file("tests/cluster/kmm.yaml")?]).await?;
        self.is("the Module is applied", &reason("ModuleApplied"), "AsWanted").await?;
        self.0.stage.collect_new_kinds().await?;
        self.0.check("KMM's definition came, and the operator applied the Module at once.").await?;

        let image = "{.spec.template.spec.containers[0].image}";
        let wanted = self.read(&[CONSUMER], image).await?;
        self.0.kubectl(&["set", "image", CONSUMER, "*=registry.example/another"]).await?;
        self.is(
            "the consumer's image is back",
            &Look { object: vec![CONSUMER], path: image.to_owned() },
            &wanted,
        )
        .await?;
        let selector = "{.spec.selector}";
        let wanted = self.read(&["module", NAME], selector).await?;
        let patch = r#"{"spec":{"selector":{"node-role.kubernetes.io/worker":"other"}}}"#;
        self.0.kubectl(&["patch", "module", NAME, "--type=merge", "--patch", patch]).await?;
        let look = Look { object: vec!["module", NAME], path: selector.to_owned() };
        self.is("the Module's selector is back", &look, &wanted).await?;
        self.0
            .check("Somebody changed the consumer's image and the Module's selector. Both were put back.")
            .await?;

        self.0.kubectl(&["delete", "ptemplate", NAME]).await?;
        for kind in ["daemonsets", "modules", "pods"] {
            wait::eventually(&format!("there are no {kind}"), DEADLINE, async || {
                let left = self.0.ask(&["get", kind, "--output=name"]).await?;
                ensure!(left.trim().is_empty(), "{left}");
                Ok(())
            })
            .await?;
        }
        self.0
            .check("The garbage collector deleted the Module, the DaemonSet and its Pod after the Ptemplate.")
            .await
    }

    async fn read(&self, object: &[&str], path: &str) -> Result<String> {
        let path = format!("--output=jsonpath={path}");
        self.0.ask(&[&["get"], object, &[&*path]].concat()).await
    }

    async fn is(&self, what: &str, look: &Look, wanted: &str) -> Result<()> {
        wait::eventually(what, DEADLINE, async || {
            let found = self.read(&look.object, &look.path).await?;
            ensure!(found == wanted, "it is {found:?}");
            Ok(())
        })
        .await
    }
}

/// A field of an object.
struct Look {
    object: Vec<&'static str>,
    path: String,
}

/// The path of a condition's reason.
fn reason(condition: &str) -> Look {
    let path = format!("{{.status.conditions[?(@.type==\"{condition}\")].reason}}");
    Look { object: vec!["ptemplate", NAME], path }
}

fn runs(fact: &Fact) -> bool {
    matches!(fact, Fact::Pod { change: PodChange::Runs, .. })
}
