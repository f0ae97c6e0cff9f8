//! The common parts of the examples' stories: a control plane, the operator, and a timeline of observations.

use std::io::{self, Write as _};

use anyhow::Result;
use cluster::{progress::Progress, tools::Tools};
use stage::{Plan, Stage};
use tokio::task::JoinSet;

use super::{
    build, observers,
    paint::{Paint, Style},
    paragraphs,
    timeline::Timeline,
};
use crate::example::Example;

/// The story and its stage.
pub(super) struct Story {
    pub(super) stage: Stage,
    pub(super) namespace: String,
    pub(super) timeline: Timeline,
    _observers: JoinSet<()>,
}

impl Story {
    /// Starts a control plane with the operator of this example, and prints what the story will show.
    pub(super) async fn begin(example: Example, title: &str, introduction: &str) -> Result<Self> {
        let paint = Paint::for_stdout();
        writeln!(io::stdout(), "{}\n", paint.paint(Style::Bold, title))?;
        paragraphs(introduction)?;
        let mut progress = Progress::new(3);
        progress.step("programs of the control plane");
        Tools::ensure().await?;
        progress.step("building the operator");
        let program = build::operator(example.name(), &mut progress).await?;
        progress.step("starting the control plane and the operator");
        let plan = Plan { operator: example.operator()?, manifests: example.manifests(), program };
        let stage = Stage::set(&plan).await?;
        progress.finish();
        let namespace = stage.namespace().await?;
        let (observers, observations) = observers::of_pods(stage.client(), &namespace, stage.audit().clone());
        let timeline = Timeline::new(observations, paint);
        Ok(Self { stage, namespace, timeline, _observers: observers })
    }

    /// Prints what has happened, then runs a command and prints it.
    pub(super) async fn kubectl(&mut self, arguments: &[&str]) -> Result<String> {
        self.timeline.settle().await?;
        self.timeline.command(format!("kubectl {}", arguments.join(" ")));
        self.ask(arguments).await
    }

    /// Runs a command that changes nothing.
    pub(super) async fn ask(&self, arguments: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={}", self.namespace);
        self.stage.kubectl(&[arguments, &[&namespace]].concat()).await
    }

    /// Prints what has happened, and that it was as expected.
    pub(super) async fn check(&mut self, what: &str) -> Result<()> {
        self.timeline.settle().await?;
        self.timeline.checked(what)
    }
}

/// Prints where to read more.
pub(super) fn end(example: Example) -> Result<()> {
    writeln!(io::stdout(), "\n  Everything has ended. The code: examples/{}/README.md", example.name())?;
    Ok(())
}
