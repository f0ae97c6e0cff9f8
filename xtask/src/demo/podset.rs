//! `cargo xtask example podset demo`: the story of the example, on a real control plane.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{progress::Progress, tools::Tools};
use stage::{Plan, Stage};
use testbed::wait::{self, DEADLINE};

use super::{
    build,
    fact::{Fact, PodChange},
    observers,
    paint::{Paint, Style},
    paragraphs,
    timeline::Timeline,
};
use crate::repository;

const INTRODUCTION: &str = "A PodSet keeps a number of Pods, all alike. Its operator is an example: about 400 lines on \
     crates/operator-kit.\n\
     Real: etcd, API server, scheduler, controller manager with its garbage collector, and the operator under its own \
     ServiceAccount's token. Played: the node's kubelet, by kwok. Every line of the timeline was observed: by a watch of the \
     API server, or in its audit log.";

/// The story, and what it is played on.
struct Story {
    stage: Stage,
    namespace: String,
    timeline: Timeline,
}

pub(crate) async fn run() -> Result<()> {
    let paint = Paint::for_stdout();
    writeln!(io::stdout(), "{}\n", paint.paint(Style::Bold, "PodSet: the demo"))?;
    paragraphs(INTRODUCTION)?;
    let mut progress = Progress::new(3);
    progress.step("programs of the control plane");
    Tools::ensure().await?;
    progress.step("building the operator");
    let program = build::operator("podset", &mut progress).await?;
    progress.step("starting the control plane and the operator");
    let manifests = repository::root().join("examples/podset/manifests");
    let stage = Stage::set(&Plan { operator: podset::operator()?, manifests, program }).await?;
    progress.finish();
    let namespace = stage.namespace().await?;
    let (_observers, observations) = observers::of_pods(stage.client(), &namespace, stage.audit().clone());
    let timeline = Timeline::new(observations, paint);
    Story { stage, namespace, timeline }.play().await?;
    writeln!(io::stdout(), "\n  Everything has ended. The code: examples/podset/README.md")?;
    Ok(())
}

impl Story {
    async fn play(&mut self) -> Result<()> {
        let sample = repository::root().join("examples/podset/manifests/sample.yaml");
        let sample = sample.to_str().context("the repository's folder has no UTF-8 name")?;
        self.kubectl(&["apply", "--filename", sample]).await?;
        let three = self.has(3).await?;
        self.running(&three).await?;
        self.check("Three Pods run, and the status names them.").await?;

        let killed = three.first().context("there are three")?;
        self.kubectl(&["delete", "pod", killed, "--wait=false"]).await?;
        let gone = Fact::Pod { name: killed.clone(), change: PodChange::Gone };
        self.timeline.until("the Pod is gone", |fact| *fact == gone).await?;
        let again = self.has(3).await?;
        ensure!(!again.contains(killed), "the status names {killed}, which is gone");
        self.check("Another Pod took the place of the deleted one.").await?;

        // Creation times are whole seconds, and the newest Pods are to be told from the others.
        self.timeline.listen_for(Duration::from_secs(1)).await?;
        self.kubectl(&["scale", "podset", "podset-sample", "--replicas=5"]).await?;
        let five = self.has(5).await?;
        self.running(&five).await?;
        self.kubectl(&["scale", "podset", "podset-sample", "--replicas=1"]).await?;
        let one = self.has(1).await?;
        ensure!(one.iter().all(|name| again.contains(name)), "{one:?} is none of the oldest, {again:?}");
        self.check("Two were added; then the newest went first. The one that is left is one of the oldest.")
            .await?;

        let refused = self.kubectl(&["scale", "podset", "podset-sample", "--replicas=11"]).await;
        let refused = refused.err().context("eleven Pods were accepted")?.to_string();
        ensure!(refused.contains("should be less than or equal to 10"), "{refused}");
        self.timeline.output(&refused).await?;
        self.check("The schema allows ten, and the API server says so.").await?;

        self.kubectl(&["delete", "podset", "podset-sample"]).await?;
        let last = Fact::Pod { name: one.concat(), change: PodChange::Gone };
        self.timeline.until("the last Pod is gone", |fact| *fact == last).await?;
        self.check(
            "The garbage collector deleted the last Pod after its PodSet. The operator had nothing to do.",
        )
        .await?;

        let created = self.writes("create");
        ensure!(created == 6, "the operator created {created} Pods");
        self.check("The operator created six Pods in all, and none twice: the audit log has every request.")
            .await
    }

    /// Tells what has happened, and runs a command and tells so.
    async fn kubectl(&mut self, arguments: &[&str]) -> Result<String> {
        self.timeline.settle().await?;
        self.timeline.command(format!("kubectl {}", arguments.join(" ")));
        let namespace = format!("--namespace={}", self.namespace);
        self.stage.kubectl(&[arguments, &[&namespace]].concat()).await
    }

    /// Waits until the status has so many Pods; gives their names.
    async fn has(&self, count: usize) -> Result<Vec<String>> {
        let path = "--output=jsonpath={.status.podNames[*]}";
        let namespace = format!("--namespace={}", self.namespace);
        wait::eventually(&format!("the PodSet has {count} Pods"), DEADLINE, async || {
            let names = self.stage.kubectl(&["get", "podset", "podset-sample", path, &namespace]).await?;
            let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
            ensure!(names.len() == count, "it has {names:?}");
            Ok(names)
        })
        .await
    }

    async fn running(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let runs = Fact::Pod { name: name.clone(), change: PodChange::Runs };
            self.timeline.until(&format!("{name} runs"), |fact| *fact == runs).await?;
        }
        Ok(())
    }

    /// How many Pods the operator created or deleted.
    fn writes(&self, verb: &str) -> usize {
        let is_it =
            |fact: &&Fact| matches!(fact, Fact::Write(it) if it.verb == verb && it.resource == "pods");
        self.timeline.facts().filter(is_it).count()
    }

    /// Tells what has happened, and that it was as it should.
    async fn check(&mut self, what: &str) -> Result<()> {
        self.timeline.settle().await?;
        self.timeline.checked(what)
    }
}
