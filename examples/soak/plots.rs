//! The plots, one below the other on one time line: turns, waits, memory, faults.

use std::ops::Range;
use std::time::Duration;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Circle, Rectangle, Text};
use plotters::prelude::{LineSeries, SVGBackend};
use plotters::style::{Color as _, IntoFont as _, RGBColor, ShapeStyle};

use super::Failure;
use super::faults::Kind;
use super::report::{Report, quantile};

const WIDTH: u32 = 1_160;
/// Of each plot of a quantity.
const HEIGHT: u32 = 190;
/// Of one kind of fault.
const LANE: u32 = 22;
/// Room for the names at the left.
const LEFT: u32 = 230;
/// Into how many parts the time is cut, at most.
const PARTS_MAX: u64 = 360;
/// What the lines are drawn in.
const COLOURS: [RGBColor; 5] = [
    RGBColor(31, 95, 168),
    RGBColor(214, 106, 28),
    RGBColor(46, 134, 84),
    RGBColor(140, 70, 150),
    RGBColor(150, 110, 40),
];
/// Points further apart than so many steps are not joined.
const GAP: f64 = 1.5;
const GREY: RGBColor = RGBColor(120, 120, 120);
const FAULT: RGBColor = RGBColor(196, 48, 48);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Points in seconds and whatever is plotted.
type Points = Vec<(f64, f64)>;

/// One line with its name.
struct Line {
    name: String,
    /// How far apart its points are, in seconds.
    step: f64,
    points: Points,
}

/// The turns of one part of the time.
#[derive(Default)]
struct Part {
    waits: Vec<Duration>,
}

/// As SVG.
pub fn svg(report: &Report) -> Result<String, Failure> {
    let kinds: Vec<Kind> = report.kinds().iter().map(|of| of.kind).collect();
    let lanes = LANE * u32::try_from(kinds.len())? + 50;
    let mut svg = String::new();
    let height = 3 * HEIGHT + lanes;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let (quantities, of_faults) = root.split_vertically(3 * HEIGHT);
        let areas = quantities.split_evenly((3, 1));
        let [turns, waits, memory] = &*areas else {
            return Err("three plots".into());
        };
        let time = 0.0..report.took.as_secs_f64().max(1.0);
        let (part, parts) = parts(report);
        let middle = |at: usize| (at as f64 + 0.5) * part;
        let of = |name: &str, value: &dyn Fn(&Part) -> Option<f64>| Line {
            name: name.to_owned(),
            step: part,
            points: parts
                .iter()
                .enumerate()
                .filter_map(|(at, part)| Some((middle(at), value(part)?)))
                .collect(),
        };
        let rate = of("", &|p| Some(p.waits.len() as f64 / part));
        plot(turns, "turns a second", &time, &[rate], report)?;
        let wait = |name, hundredths| {
            of(name, &|p: &Part| {
                let some = !p.waits.is_empty();
                some.then(|| quantile(&p.waits, hundredths).as_secs_f64())
            })
        };
        let lines = [wait("longest", 100), wait("median", 50)];
        plot(waits, "waits for a turn, s", &time, &lines, report)?;
        let lines: Vec<Line> = (0..report.replicas)
            .map(|number| Line {
                name: format!("replica {}", number + 1),
                step: f64::INFINITY,
                points: memory_of(report, number),
            })
            .collect();
        plot(memory, "resident memory, MiB", &time, &lines, report)?;
        lanes_of(&of_faults, &time, &kinds, report)?;
        root.present()?;
    }
    Ok(svg)
}

/// The turns, by parts of equal length, which is told in seconds; the waits of each sorted.
fn parts(report: &Report) -> (f64, Vec<Part>) {
    let seconds = report.took.as_secs().max(1);
    let length = seconds.div_ceil(PARTS_MAX).max(1);
    let mut parts: Vec<Part> = Vec::new();
    parts.resize_with(
        usize::try_from(seconds / length).unwrap_or(0) + 1,
        Part::default,
    );
    for waited in &report.waited {
        let at = usize::try_from(waited.held.as_secs() / length).unwrap_or(0);
        if let Some(part) = parts.get_mut(at) {
            part.waits.push(waited.wait);
        }
    }
    for part in &mut parts {
        part.waits.sort_unstable();
    }
    (length as f64, parts)
}

fn memory_of(report: &Report, number: usize) -> Points {
    let thinned = report.samples.len().div_ceil(PARTS_MAX as usize).max(1);
    let samples = report.samples.iter().step_by(thinned);
    let points = samples.filter_map(|sample| {
        let bytes = sample.memory.get(number).copied().flatten()?;
        Some((sample.at.as_secs_f64(), bytes as f64 / f64::from(1 << 20)))
    });
    points.collect()
}

/// One plot of a quantity, with a shade wherever a fault was active.
fn plot(
    area: &Area<'_>,
    name: &str,
    time: &Range<f64>,
    lines: &[Line],
    report: &Report,
) -> Result<(), Failure> {
    let values = lines.iter().flat_map(|line| &line.points);
    let top = values.map(|(_, value)| *value).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .margin_right(12)
        .margin_top(26)
        .x_label_area_size(20)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(time.clone(), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(GREY.mix(0.08))
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .x_labels(12)
        .y_labels(5)
        .x_label_formatter(&|at| minutes(*at))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    let shades = report.faults.iter().map(|span| {
        let corners = [(span.from.as_secs_f64(), 0.0), (span.to.as_secs_f64(), top)];
        Rectangle::new(corners, FAULT.mix(0.07).filled())
    });
    chart.draw_series(shades)?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        // Where nothing is known, no line is drawn.
        let runs = line
            .points
            .chunk_by(|(one, _), (next, _)| next - one < GAP * line.step);
        for run in runs {
            let style = ShapeStyle::from(colour).stroke_width(1);
            chart.draw_series(LineSeries::new(run.iter().copied(), style))?;
            // A point by itself would not show in a line.
            let alone = run.iter().filter(|_| run.len() == 1).copied();
            chart.draw_series(alone.map(|at| Circle::new(at, 1, colour.filled())))?;
        }
    }
    let font = ("sans-serif", 13).into_font();
    area.draw(&Text::new(name.to_owned(), (LEFT as i32, 8), font.clone()))?;
    let mut right = LEFT as i32 + 240;
    for (line, colour) in lines
        .iter()
        .zip(COLOURS)
        .filter(|(l, _)| !l.name.is_empty())
    {
        area.draw(&Circle::new((right, 14), 4, colour.filled()))?;
        area.draw(&Text::new(line.name.clone(), (right + 9, 8), font.clone()))?;
        right += 110;
    }
    Ok(())
}

/// Each fault as a bar in the lane of its kind.
fn lanes_of(
    area: &Area<'_>,
    time: &Range<f64>,
    kinds: &[Kind],
    report: &Report,
) -> Result<(), Failure> {
    let lanes = kinds.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin_right(12)
        .margin_top(26)
        .x_label_area_size(22)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(time.clone(), lanes..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(GREY.mix(0.08))
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .x_labels(12)
        .x_label_formatter(&|at| minutes(*at))
        .draw()?;
    let bars = report.faults.iter().filter_map(|span| {
        let lane = kinds.iter().position(|kind| *kind == span.kind)? as f64;
        let corners = [
            (span.from.as_secs_f64(), lane + 0.18),
            (span.to.as_secs_f64(), lane + 0.82),
        ];
        Some(Rectangle::new(corners, FAULT.mix(0.75).filled()))
    });
    chart.draw_series(bars)?;
    let font = ("sans-serif", 13).into_font();
    area.draw(&Text::new("faults", (LEFT as i32, 8), font.clone()))?;
    for (lane, kind) in kinds.iter().enumerate() {
        let top = 26 + i32::try_from(lane)? * LANE as i32;
        area.draw(&Text::new(kind.words(), (8, top + 5), font.clone()))?;
    }
    Ok(())
}

fn minutes(seconds: f64) -> String {
    super::timeline::clock(Duration::from_secs_f64(seconds.max(0.0)))
}
