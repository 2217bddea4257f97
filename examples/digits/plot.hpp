// SPDX-License-Identifier: MIT
/// @file
/// Draws a training as SVG: loss and accuracy, and what each replica did in a few updates from its middle.
#pragma once

#include <lockstep/observe/chrome_trace.hpp>
#include <lockstep/observe/observer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

namespace digits {

/// Loss and accuracy over a training; belongs to one replica while it runs.
class Curve {
 public:
  struct Point {
    std::int64_t step;
    double loss, accuracy;
  };

  explicit Curve(std::int64_t steps) : steps_(steps), stride_(std::max<std::int64_t>(1, steps / 100)) {}

  /// Whether the curve has no point near this step yet.
  bool is_due(std::int64_t step) const { return step >= next_ || step >= steps_; }
  void add(const Point& point) {
    points_.push_back(point);
    next_ = (point.step / stride_ + 1) * stride_;
  }
  std::int64_t steps() const { return steps_; }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::int64_t steps_, stride_, next_ = 1;
  std::vector<Point> points_;
};

/// A document under construction; lengths are pixels from the upper left corner.
class Drawing {
 public:
  Drawing(double width, double height) {
    print(R"(<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g" )", width,
          height, width, height);
    print("font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
          width, height);
  }
  void rectangle(double x, double y, double width, double height, const char* colour,
                 const std::string& title) {
    print(R"(<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"><title>%s</title></rect>)", x, y,
          width, height, colour, title.c_str());
    text_ += '\n';
  }
  void frame(double x, double y, double width, double height) {
    print("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"none\" stroke=\"#888\"/>\n", x, y, width,
          height);
  }
  /// @param anchor start, middle or end: what of the words is at x.
  void words(double x, double y, const char* anchor, const std::string& words, const char* colour = "#222") {
    print("<text x=\"%g\" y=\"%g\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, colour,
          words.c_str());
  }
  void line(const std::string& points, const char* colour) {
    text_ += "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"" + std::string(colour) + "\" points=\"" +
             points + "\"/>\n";
  }
  void write(std::ostream& out) const { out << text_ << "</svg>\n"; }

  template <class... Values>
  static std::string text(const char* format, Values... values) {
    std::array<char, 400> line;
    std::snprintf(line.data(), line.size(), format, values...);
    return line.data();
  }

 private:
  template <class... Values>
  void print(const char* format, Values... values) {
    text_ += text(format, values...);
  }

  std::string text_;
};

inline const char* colour_of(lockstep::Activity activity) {
  using enum lockstep::Activity;
  switch (activity) {
    case compute:
      return "#4c78a8";
    case push:
      return "#f58518";
    case wait:
      return "#d9d9d9";
    case measure:
      return "#72b7b2";
    case apply:
      return "#54a24b";
    case commit:
      return "#e45756";
    case snapshot:
      return "#b279a2";
  }
  return "black";
}

/// The curves, in the frame (x, y, width, height): loss against the left axis, accuracy against the right
/// one.
inline void draw_curve(Drawing& drawing, const Curve& curve, double x, double y, double width,
                       double height) {
  double most = 0;
  for (const Curve::Point& point : curve.points()) most = std::max(most, point.loss);
  if (most <= 0) most = 1;
  std::string loss, accuracy;
  for (const Curve::Point& point : curve.points()) {
    const double at = x + width * static_cast<double>(point.step) / static_cast<double>(curve.steps());
    loss += Drawing::text("%.2f,%.2f ", at, y + height * (1 - point.loss / most));
    accuracy += Drawing::text("%.2f,%.2f ", at, y + height * (1 - point.accuracy));
  }
  drawing.frame(x, y, width, height);
  drawing.line(loss, "#e45756");
  drawing.line(accuracy, "#4c78a8");
  drawing.words(x - 6, y + 10, "end", Drawing::text("%.2g", most), "#e45756");
  drawing.words(x - 6, y + height / 2, "end", "loss", "#e45756");
  drawing.words(x - 6, y + height, "end", "0", "#e45756");
  drawing.words(x + width + 6, y + 10, "start", "1", "#4c78a8");
  drawing.words(x + width + 6, y + height / 2, "start", "accuracy", "#4c78a8");
  drawing.words(x + width + 6, y + height, "start", "0", "#4c78a8");
  drawing.words(x, y + height + 16, "start", "update 0");
  drawing.words(x + width, y + height + 16, "end",
                Drawing::text("%lld", static_cast<long long>(curve.steps())));
}

/// A row for each replica below (x, y), with what it did from the first of these updates to the last.
inline void draw_time_line(Drawing& drawing, const std::vector<lockstep::Span>& spans, int replicas,
                           std::int64_t first, std::int64_t last, double x, double y, double width,
                           double row) {
  std::vector<lockstep::Span> shown;
  for (const lockstep::Span& span : spans)
    if (span.replica >= 0 && span.step >= first && span.step <= last) shown.push_back(span);
  for (int i = 0; i < replicas; ++i)
    drawing.words(x - 6, y + row * (i + 0.6), "end", Drawing::text("replica %d", i));
  drawing.frame(x, y, width, row * replicas);
  if (shown.empty()) return;
  auto begin = shown.front().begin, end = shown.front().end;
  for (const lockstep::Span& span : shown) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  using Microseconds = std::chrono::duration<double, std::micro>;
  const double all = std::max(Microseconds(end - begin).count(), 1e-3);
  for (const lockstep::Span& span : shown) {
    const double from = Microseconds(span.begin - begin).count(),
                 lasted = Microseconds(span.end - span.begin).count();
    drawing.rectangle(x + width * from / all, y + row * (span.replica + 0.1),
                      std::max(width * lasted / all, 0.2), row * 0.8, colour_of(span.activity),
                      Drawing::text("%s, step %lld, %.1f us", to_string(span.activity),
                                    static_cast<long long>(span.step), lasted));
  }
  drawing.words(
      x, y + row * replicas + 16, "start",
      Drawing::text("updates %lld to %lld", static_cast<long long>(first), static_cast<long long>(last)));
  drawing.words(x + width, y + row * replicas + 16, "end", Drawing::text("%.0f us", all));
  double at = x;
  for (const lockstep::Activity activity :
       {lockstep::Activity::compute, lockstep::Activity::push, lockstep::Activity::wait,
        lockstep::Activity::apply, lockstep::Activity::commit, lockstep::Activity::snapshot}) {
    drawing.rectangle(at, y - 22, 12, 12, colour_of(activity), to_string(activity));
    drawing.words(at + 16, y - 12, "start", to_string(activity));
    at += 90;
  }
}

/// Draws the whole picture.
inline void plot(std::ostream& out, const Curve& curve, const lockstep::ChromeTrace& trace, int replicas) {
  constexpr double k_left = 90, k_width = 720, k_curve_height = 260, k_row = 28, k_time_line_top = 350;
  Drawing drawing(900, k_time_line_top + k_row * replicas + 40);
  draw_curve(drawing, curve, k_left, 30, k_width, k_curve_height);
  const std::int64_t first = curve.steps() / 2;
  draw_time_line(drawing, trace.spans(), replicas, first, first + 5, k_left, k_time_line_top, k_width, k_row);
  drawing.write(out);
}

}  // namespace digits
