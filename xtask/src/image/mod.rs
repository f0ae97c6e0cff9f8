//! `cargo xtask image`: the image of the operator or of an example, without a container engine.

mod push;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use ::image::{Compression, Files, Materials, example, operator, public_authorities};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use peerpod_operator::{
    cli::{self, Shell},
    install::NAME,
    names::DEFAULT_IMAGE,
};

use crate::{example::Example, release, repository};

/// How the image is to be.
#[derive(Args)]
pub(crate) struct Task {
    /// The folder for the archive and the bill of materials; without it, target/image in this repository
    #[arg(long)]
    output: Option<PathBuf>,
    /// The image of an operator in examples/
    #[arg(long, value_enum)]
    example: Option<Example>,
    /// The image's name; without it, that in the installation
    #[arg(long)]
    name: Option<String>,
    /// A program that is already built, instead of a new build
    #[arg(long)]
    program: Option<PathBuf>,
    /// Also pushes it to this registry, with the credentials of `docker login`; NAME is its name there, without its tag
    #[arg(long, value_name = "REGISTRY[/NAME]")]
    push: Option<String>,
    /// Pushes without TLS
    #[arg(long, requires = "push")]
    plain_http: bool,
}

/// The program in the image.
struct Subject {
    /// The package, and its program.
    package: &'static str,
    /// The start of the files' names.
    name: &'static str,
    about: &'static str,
    /// The image's name in the installation.
    image: String,
}

impl Subject {
    fn of(task: &Task) -> Result<Self> {
        let Some(example) = task.example else {
            let about = "Deletes the VMs of peer pods that no longer exist";
            return Ok(Self { package: NAME, name: NAME, about, image: DEFAULT_IMAGE.to_owned() });
        };
        let operator = example.operator()?;
        let image = format!("{}:{}", operator.name, operator.version);
        Ok(Self { package: example.name(), name: operator.name, about: operator.about, image })
    }
}

pub(crate) async fn run(task: &Task) -> Result<()> {
    let subject = Subject::of(task)?;
    let name = task.name.as_ref().unwrap_or(&subject.image);
    // containerd would look for another name.
    ensure!(
        name.contains(':') && !name.contains('/'),
        "the image's name is NAME:TAG, without a registry, and not {name}: --push REGISTRY pushes it to one"
    );
    // Check the destination and the materials before the build, not after it.
    let reference = task.push.as_ref().map(|push| push::reference(push, name)).transpose()?;
    let mut materials = Materials::of(&repository::root(), subject.package)?;
    if task.example.is_none() {
        public_authorities()?;
        materials = materials.with_authorities();
    }
    let program = match &task.program {
        Some(program) => program.clone(),
        None => release::build(subject.package, &["--locked"])?,
    };
    let output = task.output.clone().unwrap_or_else(|| repository::root().join("target/image"));
    fs::create_dir_all(&output).with_context(|| format!("creating {}", output.display()))?;
    let [archive, bill] =
        ["oci.tar", "cdx.json"].map(|extension| output.join(format!("{}.{extension}", subject.name)));
    let labels = labels(subject.about);
    let mut image = if task.example.is_some() {
        example(&program, name, &labels)?
    } else {
        let mut image = operator(&program, name, &labels)?;
        document(&mut image.files)?;
        image
    };
    materials.license_files(subject.name, &mut image.files)?;
    let packed = image.pack(Compression::Gzip)?;
    let written = packed.write(&archive).with_context(|| format!("writing {}", archive.display()))?;
    let text = format!("{:#}\n", materials.bill()?);
    fs::write(&bill, text).with_context(|| format!("writing {}", bill.display()))?;
    let size = f64::from(u32::try_from(written.size)?) / f64::from(1 << 20);
    let mut out = stdout();
    writeln!(out, "image    {name}")?;
    writeln!(out, "digest   {}", written.digest)?;
    writeln!(out, "size     {size:.1} MiB compressed")?;
    writeln!(out, "archive  {}", archive.display())?;
    writeln!(out, "made of  {}", bill.display())?;
    if let Some(reference) = reference {
        push::push(&packed, &reference, task.plain_http).await?;
        writeln!(out, "pushed   {reference}")?;
    }
    Ok(())
}

/// Adds the manual's pages, and the completions of the shells that have a folder for them.
fn document(files: &mut Files) -> Result<()> {
    let pages = tempfile::tempdir().context("making a folder")?;
    cli::man_pages(pages.path()).context("writing the manual's pages")?;
    for page in fs::read_dir(pages.path())? {
        let page = page?;
        let path = format!("/usr/share/man/man1/{}", page.file_name().display());
        files.file(&path, fs::read(page.path())?);
    }
    for (shell, path) in [
        (Shell::Bash, format!("/usr/share/bash-completion/completions/{NAME}")),
        (Shell::Zsh, format!("/usr/share/zsh/site-functions/_{NAME}")),
        (Shell::Fish, format!("/usr/share/fish/vendor_completions.d/{NAME}.fish")),
    ] {
        files.file(&path, cli::completions(shell));
    }
    Ok(())
}

/// The version and source of this image. Sources that are no git repository have no revision.
fn labels(about: &str) -> BTreeMap<String, String> {
    let label = |key: &str, value: String| (format!("org.opencontainers.image.{key}"), value);
    let mut labels = BTreeMap::from([
        label("version", env!("CARGO_PKG_VERSION").to_owned()),
        label("description", about.to_owned()),
    ]);
    let root = repository::root();
    let revision = git(&root, &["rev-parse", "HEAD"]).zip(git(&root, &["status", "--porcelain"]));
    if let Some((revision, changes)) = revision {
        let suffix = if changes.is_empty() { "" } else { "-dirty" };
        labels.extend([label("revision", revision + suffix)]);
        labels.extend(git(&root, &["log", "-1", "--format=%cI"]).map(|date| label("created", date)));
    }
    labels
}

/// The output of git, if it succeeds.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
