//! Plots what bench/peers/run or bench/sites/run measured: how many sections a second against how long they took, p50 at the
//! left and p99 at the right, both on logarithmic scales. A line a system, through the medians of its rounds, from few workers to
//! many, or from site to site.
//!
//!     cargo run --example rates target/peers/results.jsonl > peers.svg

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program prints what came of it"
)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::process::ExitCode;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange as _;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Circle, Text};
use plotters::prelude::{LineSeries, SVGBackend};
use plotters::style::{Color as _, IntoFont as _, RGBColor, WHITE};
use serde::Deserialize;

const WIDTH: u32 = 1_160;
/// Of the plots of one load.
const HEIGHT: u32 = 380;
/// Of a row of the systems' names.
const NAMES_HEIGHT: u32 = 24;
const NAMES_IN_A_ROW: usize = 6;
const COLOURS: [RGBColor; 12] = [
    RGBColor(31, 95, 168),
    RGBColor(110, 160, 215),
    RGBColor(150, 110, 40),
    RGBColor(214, 106, 28),
    RGBColor(46, 134, 84),
    RGBColor(120, 190, 90),
    RGBColor(140, 70, 150),
    RGBColor(90, 90, 90),
    RGBColor(200, 40, 60),
    RGBColor(0, 150, 160),
    RGBColor(190, 160, 0),
    RGBColor(230, 130, 180),
];

type Failure = Box<dyn std::error::Error>;

/// One run, as the scripts write it.
#[derive(Debug, Deserialize)]
struct Run {
    system: String,
    sections_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// On one machine: whose keys, and how many workers.
    keys: Option<String>,
    workers: Option<u32>,
    /// On three sites: which load, and from which site.
    load: Option<String>,
    site: Option<u32>,
}

/// The middle of all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// By load, by system, by workers or site.
type Plots = BTreeMap<String, Vec<(String, BTreeMap<u32, Point>)>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rates: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (Some(path), None) = (args.next(), args.next()) else {
        return Err("usage: rates RESULTS.jsonl > PLOT.svg".into());
    };
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let runs: Vec<Run> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{path}: {error}"))?;
    std::io::stdout().write_all(svg(&plots(&runs))?.as_bytes())?;
    Ok(())
}

fn plots(runs: &[Run]) -> Plots {
    type Rounds<'a> = BTreeMap<u32, Vec<&'a Run>>;
    let mut found: BTreeMap<String, Vec<(String, Rounds<'_>)>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.sections_per_s > 0.0) {
        let load = match (&run.keys, &run.load) {
            (_, Some(load)) => format!("{load}, by site"),
            (Some(keys), None) => format!("{keys} key, by workers"),
            (None, None) => continue,
        };
        let Some(number) = run.site.or(run.workers) else {
            continue;
        };
        let systems = found.entry(load).or_default();
        let at = systems.iter().position(|(name, _)| *name == run.system);
        let at = at.unwrap_or_else(|| {
            systems.push((run.system.clone(), Rounds::new()));
            systems.len() - 1
        });
        systems[at].1.entry(number).or_default().push(run);
    }
    let of_systems = |(name, rounds): (String, Rounds<'_>)| {
        let points = rounds
            .into_iter()
            .map(|(number, runs)| (number, middle(&runs)));
        (name, points.collect())
    };
    found
        .into_iter()
        .map(|(load, systems)| (load, systems.into_iter().map(of_systems).collect()))
        .collect()
}

fn middle(runs: &[&Run]) -> Point {
    let of = |value: fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(|run| value(run)).collect();
        values.sort_by(f64::total_cmp);
        let half = values.len() / 2;
        match values.len() % 2 {
            0 => (values[half - 1] + values[half]) / 2.0,
            _ => values[half],
        }
    };
    Point {
        rate: of(|run| run.sections_per_s),
        p50_ms: of(|run| run.p50_us) / 1_000.0,
        p99_ms: of(|run| run.p99_us) / 1_000.0,
    }
}

fn svg(plots: &Plots) -> Result<String, Failure> {
    if plots.is_empty() {
        return Err("no run with a section in it".into());
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in plots.values().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let count = u32::try_from(plots.len())?;
    let mut svg = String::new();
    {
        let rows = u32::try_from(names.len().div_ceil(NAMES_IN_A_ROW))?;
        let size = (WIDTH, NAMES_HEIGHT * rows + HEIGHT * count);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, below) = root.split_vertically(NAMES_HEIGHT * rows);
        let step = i32::try_from(WIDTH)? / i32::try_from(NAMES_IN_A_ROW)?;
        for ((name, colour), at) in names.iter().zip(COLOURS.iter().cycle()).zip(0..) {
            let (row, left) = (at / NAMES_IN_A_ROW, at % NAMES_IN_A_ROW);
            let (row, left) = (i32::try_from(row)?, i32::try_from(left)?);
            let style = ("sans-serif", 15).into_font().color(colour);
            let position = (20 + left * step, 8 + row * i32::try_from(NAMES_HEIGHT)?);
            legend.draw(&Text::new(*name, position, style))?;
        }
        for (area, (load, systems)) in below.split_evenly((plots.len(), 1)).iter().zip(plots) {
            let halves = area.split_evenly((1, 2));
            let [left, right] = &*halves else {
                return Err("two plots".into());
            };
            plot(
                left,
                &format!("p50, ms: {load}"),
                systems,
                &names,
                |point| point.p50_ms,
            )?;
            plot(
                right,
                &format!("p99, ms: {load}"),
                systems,
                &names,
                |point| point.p99_ms,
            )?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// What holds all of them, with some room.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    low.max(1e-3) / 1.5..high.max(2e-3) * 1.5
}

fn plot(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    systems: &[(String, BTreeMap<u32, Point>)],
    names: &[&str],
    value: fn(&Point) -> f64,
) -> Result<(), Failure> {
    let all = || systems.iter().flat_map(|(_, points)| points.values());
    let rates = range(all().map(|point| point.rate)).log_scale();
    let times = range(all().map(value)).log_scale();
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(title, ("sans-serif", 16))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(rates, times)?;
    chart.configure_mesh().x_desc("sections/s").draw()?;
    for (name, points) in systems {
        let at = names.iter().position(|known| known == name).unwrap_or(0);
        let colour = COLOURS[at % COLOURS.len()];
        let line = || points.values().map(|point| (point.rate, value(point)));
        chart.draw_series(LineSeries::new(line(), colour.stroke_width(2)))?;
        chart.draw_series(line().map(|at| Circle::new(at, 3, colour.filled())))?;
        let font = ("sans-serif", 12).into_font().color(&colour);
        let label = |(number, point): (&u32, &Point)| {
            let at = (point.rate * 1.03, value(point) * 1.12);
            Text::new(number.to_string(), at, font.clone())
        };
        chart.draw_series(points.iter().map(label))?;
    }
    Ok(())
}
