//! `cargo xtask example podset demo`: the story of the example, on a real control plane.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testbed::wait::{self, DEADLINE};

use super::{
    example::{Story, end},
    fact::{Fact, PodChange},
};
use crate::{example::Example, repository};

const INTRODUCTION: &str = "A PodSet keeps a number of Pods, all alike. Its operator is an example: about 400 lines on \
     crates/operator-kit.\n\
     Real: etcd, API server, scheduler, controller manager with its garbage collector, and the operator under its own \
     ServiceAccount's token. Played: the node's kubelet, by kwok. Every line of the timeline was observed: by a watch of the \
     API server, or in its audit log.";

pub(crate) async fn run() -> Result<()> {
    let mut story = PodSet(Story::begin(Example::Podset, "PodSet: the demo", INTRODUCTION).await?);
    story.play().await?;
    end(Example::Podset)
}

struct PodSet(Story);

impl PodSet {
    async fn play(&mut self) -> Result<()> {
        let sample = repository::root().join("examples/podset/manifests/sample.yaml");
        let sample = sample.to_str().context("the repository's folder has no UTF-8 name")?;
        self.0.kubectl(&["apply", "--filename", sample]).await?;
        let three = self.has(3).await?;
        self.running(&three).await?;
        self.0.check("Three Pods run, and the status names them.").await?;

        let killed = three.first().context("there are three")?;
        self.0.kubectl(&["delete", "pod", killed, "--wait=false"]).await?;
        let gone = Fact::Pod { name: killed.clone(), change: PodChange::Gone };
        self.0.timeline.until("the Pod is gone", |fact| *fact == gone).await?;
        // The status may still be the one from before.
        let again = wait::eventually("the status names another Pod", DEADLINE, async || {
            let names = self.has(3).await?;
            ensure!(!names.contains(killed), "the status names {killed}, which is gone");
            Ok(names)
        })
        .await?;
        self.0.check("Another Pod took the place of the deleted one.").await?;

        // Creation times are whole seconds. The newest Pods need a second of their own.
        self.0.timeline.listen_for(Duration::from_secs(1)).await?;
        self.0.kubectl(&["scale", "podset", "podset-sample", "--replicas=5"]).await?;
        let five = self.has(5).await?;
        self.running(&five).await?;
        self.0.kubectl(&["scale", "podset", "podset-sample", "--replicas=1"]).await?;
        let one = self.has(1).await?;
        ensure!(one.iter().all(|name| again.contains(name)), "{one:?} is none of the oldest, {again:?}");
        self.0
            .check("Two were added; then the newest went first. The one that is left is one of the oldest.")
            .await?;

        let refused = self.0.kubectl(&["scale", "podset", "podset-sample", "--replicas=11"]).await;
        let refused = refused.err().context("eleven Pods were accepted")?.to_string();
        ensure!(refused.contains("should be less than or equal to 10"), "{refused}");
        self.0.timeline.output(&refused).await?;
        self.0.check("The schema allows ten, and the API server says so.").await?;

        self.0.kubectl(&["delete", "podset", "podset-sample"]).await?;
        let last = Fact::Pod { name: one.concat(), change: PodChange::Gone };
        self.0.timeline.until("the last Pod is gone", |fact| *fact == last).await?;
        self.0.check(
            "The garbage collector deleted the last Pod after its PodSet. The operator had nothing to do.",
        )
        .await?;

        let created = self.writes("create");
        ensure!(created == 6, "the operator created {created} Pods");
        self.0
            .check("The operator created six Pods in all, and none twice: the audit log has every request.")
            .await
    }

    /// Waits until the status has so many Pods. Returns their names.
    async fn has(&self, count: usize) -> Result<Vec<String>> {
        let path = "--output=jsonpath={.status.podNames[*]}";
        wait::eventually(&format!("the PodSet has {count} Pods"), DEADLINE, async || {
            let names = self.0.ask(&["get", "podset", "podset-sample", path]).await?;
            let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
            ensure!(names.len() == count, "it has {names:?}");
            Ok(names)
        })
        .await
    }

    async fn running(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let runs = Fact::Pod { name: name.clone(), change: PodChange::Runs };
            self.0.timeline.until(&format!("{name} runs"), |fact| *fact == runs).await?;
        }
        Ok(())
    }

    /// How many Pods the operator created or deleted.
    fn writes(&self, verb: &str) -> usize {
        let is_it =
            |fact: &&Fact| matches!(fact, Fact::Write(it) if it.verb == verb && it.resource == "pods");
        self.0.timeline.facts().filter(is_it).count()
    }
}
